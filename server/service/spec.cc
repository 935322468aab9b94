#include "server/service/spec.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/base/errors.h"

namespace flashbob::server {
namespace {

// Both enums list the tensors in one order; the wire's begins with UNSPECIFIED.
static_assert(v1::TENSOR_NAME_Q == static_cast<int>(TensorName::kQ) + 1);
static_assert(v1::TENSOR_NAME_DO == static_cast<int>(TensorName::kDo) + 1);
static_assert(v1::TENSOR_NAME_TDO == static_cast<int>(TensorName::kTdo) + 1);
static_assert(v1::TENSOR_NAME_GDO == static_cast<int>(TensorName::kGdo) + 1);
static_assert(v1::TENSOR_NAME_TDV == kNumTensorNames);

// More axes than any tensor has; what is longer is not even printed.
constexpr int kMaxAxes = 8;

absl::Status BadSpec(const std::string& text) { return Error(Reason::kBadSpec, text); }

absl::StatusOr<TensorName> NameOf(v1::TensorName name, const std::string& where) {
  if (name == v1::TENSOR_NAME_DLSE) {
    return Error(Reason::kUnsupportedProblem,
                 absl::StrCat(where, " is dlse: a cotangent of lse is not served; the nearest that is: do alone"));
  }
  if (name < v1::TENSOR_NAME_Q || name > kNumTensorNames) {
    return BadSpec(absl::StrCat(where, " has the unknown tensor name ", static_cast<int>(name)));
  }
  return static_cast<TensorName>(name - 1);
}

absl::StatusOr<DType> DTypeOf(v1::DataType dtype, TensorName name) {
  switch (dtype) {
    case v1::DATA_TYPE_BF16:
      return DType::kBFloat16;
    case v1::DATA_TYPE_FP16:
      return DType::kFloat16;
    case v1::DATA_TYPE_FP32:
      return DType::kFloat32;
    case v1::DATA_TYPE_FP64:
      return DType::kFloat64;
    default:
      return BadSpec(absl::StrCat("input ", Name(name), " has the unknown data type ", static_cast<int>(dtype)));
  }
}

absl::StatusOr<Layout> LayoutOf(v1::Layout layout) {
  switch (layout) {
    case v1::LAYOUT_BHND:
      return Layout::kBHND;
    case v1::LAYOUT_BNHD:
      return Layout::kBNHD;
    case v1::LAYOUT_THD:
      return Layout::kTHD;
    default:
      return BadSpec(absl::StrCat("problem has the unknown layout ", static_cast<int>(layout)));
  }
}

absl::StatusOr<Alignment> AlignmentOf(v1::MaskAlignment alignment) {
  switch (alignment) {
    case v1::MASK_ALIGNMENT_UNSPECIFIED:
    case v1::MASK_ALIGNMENT_TOP_LEFT:
      return Alignment::kTopLeft;
    case v1::MASK_ALIGNMENT_BOTTOM_RIGHT:
      return Alignment::kBottomRight;
    default:
      return BadSpec(absl::StrCat("mask has the unknown alignment ", static_cast<int>(alignment)));
  }
}

absl::StatusOr<ProblemOptions> OptionsOf(const v1::Problem& problem) {
  ProblemOptions options;
  FLASHBOB_ASSIGN_OR_RETURN(options.layout, LayoutOf(problem.layout()));
  FLASHBOB_ASSIGN_OR_RETURN(options.alignment, AlignmentOf(problem.mask().alignment()));
  if (problem.mask().has_left()) options.window_left = problem.mask().left();
  if (problem.mask().has_right()) options.window_right = problem.mask().right();
  if (problem.has_scale()) options.scale = problem.scale();
  options.probes = problem.probes();
  for (const auto* starts : {&problem.cu_seqlens_q(), &problem.cu_seqlens_k()}) {
    if (starts->size() > kMaxSequences + 1) {
      return Error(
          Reason::kTooLarge,
          absl::StrCat("a packed batch of ", starts->size() - 1, " sequences; this server takes ", kMaxSequences),
          {{"needed_sequences", starts->size() - 1}, {"limit_sequences", kMaxSequences}});
    }
  }
  options.cu_seqlens_q.assign(problem.cu_seqlens_q().begin(), problem.cu_seqlens_q().end());
  options.cu_seqlens_k.assign(problem.cu_seqlens_k().begin(), problem.cu_seqlens_k().end());
  options.deterministic = problem.deterministic();
  switch (problem.fp32_precision()) {
    case v1::FP32_PRECISION_UNSPECIFIED:
    case v1::FP32_PRECISION_IEEE:
      break;
    case v1::FP32_PRECISION_ALLOW_TF32:
      options.allow_tf32 = true;
      break;
    default:
      return BadSpec(
          absl::StrCat("problem has the unknown fp32 precision ", static_cast<int>(problem.fp32_precision())));
  }
  return options;
}

// `what` names the tensor in errors, as in "input 2".
absl::StatusOr<TensorInfo> TensorOf(const v1::TensorSpec& spec, const std::string& what) {
  TensorInfo info;
  FLASHBOB_ASSIGN_OR_RETURN(info.name, NameOf(spec.name(), what));
  FLASHBOB_ASSIGN_OR_RETURN(info.dtype, DTypeOf(spec.dtype(), info.name));
  if (spec.shape_size() > kMaxAxes) {
    return BadSpec(
        absl::StrCat("input ", Name(info.name), " has ", spec.shape_size(), " axes; at most 5 mean anything"));
  }
  info.shape.assign(spec.shape().begin(), spec.shape().end());
  return info;
}

absl::Status CheckSource(const v1::InputTensor& input, TensorName name) {
  switch (input.source_case()) {
    case v1::InputTensor::kInline:
      return absl::OkStatus();
    case v1::InputTensor::kHandle:
      if (!input.handle().empty()) return absl::OkStatus();
      return BadSpec(absl::StrCat("input ", Name(name), " has an empty handle"));
    case v1::InputTensor::SOURCE_NOT_SET:
      break;
  }
  return BadSpec(absl::StrCat("input ", Name(name), " has no source: neither inline nor a handle"));
}

// The lease of an output that is to be kept; nothing for one that is sent.
absl::StatusOr<std::optional<Duration>> LeaseOf(const v1::OutputTensor& output, TensorName name) {
  switch (output.destination_case()) {
    case v1::OutputTensor::kInline:
      return std::nullopt;
    case v1::OutputTensor::kKeep:
      return std::chrono::seconds(std::clamp<int64_t>(output.keep().lease_seconds(), 0, 1'000'000'000));
    case v1::OutputTensor::DESTINATION_NOT_SET:
      break;
  }
  return BadSpec(absl::StrCat("output ", Name(name), " has no destination: neither inline nor keep"));
}

}  // namespace

absl::Status CheckRequestId(const std::string& id) {
  if (id.size() > kMaxRequestIdBytes) {
    return BadSpec(absl::StrCat("request_id has ", id.size(), " bytes; at most ", kMaxRequestIdBytes, " are allowed"));
  }
  const auto bad = std::find_if(id.begin(), id.end(), [](char c) { return c < 0x20 || c > 0x7e; });
  if (bad != id.end()) {
    return BadSpec(absl::StrCat("request_id has the byte ", static_cast<unsigned char>(*bad), " at ", bad - id.begin(),
                                "; only printable ASCII is allowed"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Operation> OperationOf(const v1::ComputeSpec& spec) {
  for (Operation operation : kAllOperations) {
    if (spec.operation() == ToProto(operation)) return operation;
  }
  return BadSpec(absl::StrCat("unknown operation ", static_cast<int>(spec.operation())));
}

absl::StatusOr<ParsedSpec> ParseSpec(const v1::ComputeSpec& spec) {
  FLASHBOB_ASSIGN_OR_RETURN(const Operation operation, OperationOf(spec));
  FLASHBOB_ASSIGN_OR_RETURN(const ProblemOptions options, OptionsOf(spec.problem()));
  for (int size : {spec.inputs_size(), spec.outputs_size()}) {
    if (size > kNumTensorNames) {
      return BadSpec(absl::StrCat("a list of ", size, " tensors; there are only ", kNumTensorNames, " names"));
    }
  }
  std::vector<TensorInfo> inputs;
  for (int i = 0; i < spec.inputs_size(); ++i) {
    FLASHBOB_ASSIGN_OR_RETURN(TensorInfo input, TensorOf(spec.inputs(i).tensor(), absl::StrCat("input ", i)));
    FLASHBOB_RETURN_IF_ERROR(CheckSource(spec.inputs(i), input.name));
    inputs.push_back(std::move(input));
  }
  TensorSet wanted;
  std::vector<TensorName> outputs;
  std::vector<std::optional<Duration>> keep;
  for (int i = 0; i < spec.outputs_size(); ++i) {
    FLASHBOB_ASSIGN_OR_RETURN(const TensorName output, NameOf(spec.outputs(i).name(), absl::StrCat("output ", i)));
    FLASHBOB_ASSIGN_OR_RETURN(const std::optional<Duration> lease, LeaseOf(spec.outputs(i), output));
    keep.push_back(lease);
    if (wanted.Has(output)) return BadSpec(absl::StrCat("output ", Name(output), " is asked for twice"));
    wanted.Add(output);
    outputs.push_back(output);
  }
  absl::StatusOr<Computation> computation = Computation::Create(operation, options, inputs, wanted);
  if (!computation.ok()) return AsSpecError(computation.status());
  const AttentionProblem& problem = computation->problem();
  if (problem.batch() > kMaxHeads / problem.heads()) {
    return Error(Reason::kTooLarge,
                 absl::StrCat("a batch of ", problem.batch(), " with ", problem.heads(),
                              " heads each; this server takes ", kMaxHeads, " heads in all"),
                 {{"batch", problem.batch()}, {"heads", problem.heads()}, {"limit_heads", kMaxHeads}});
  }
  ParsedSpec parsed{*std::move(computation), {}, {}, std::move(outputs), std::move(keep), spec.brief_answer()};
  for (const TensorInfo& input : inputs) parsed.inputs.push_back(input.name);
  for (const v1::InputTensor& input : spec.inputs()) parsed.handles.push_back(input.handle());
  if (parsed.outputs.empty()) {
    parsed.computation.outputs().ForEach([&](TensorName name) { parsed.outputs.push_back(name); });
    parsed.keep.resize(parsed.outputs.size());
  }
  return parsed;
}

absl::StatusOr<std::vector<TensorInfo>> ParseTensors(const v1::PutTensorsSpec& spec) {
  if (spec.tensors_size() > kNumTensorNames) {
    return BadSpec(
        absl::StrCat("a list of ", spec.tensors_size(), " tensors; there are only ", kNumTensorNames, " names"));
  }
  std::vector<TensorInfo> infos;
  TensorSet names;
  for (int i = 0; i < spec.tensors_size(); ++i) {
    FLASHBOB_ASSIGN_OR_RETURN(TensorInfo info, TensorOf(spec.tensors(i), absl::StrCat("tensor ", i)));
    if (names.Has(info.name)) return BadSpec(absl::StrCat("tensor ", Name(info.name), " comes twice"));
    names.Add(info.name);
    auto left = std::numeric_limits<int64_t>::max() / static_cast<int64_t>(SizeOf(info.dtype));
    for (int64_t extent : info.shape) {
      if (extent < 0 || (extent > 0 && left / extent == 0)) {
        return BadSpec(absl::StrCat("tensor ", Name(info.name), " has the shape ", ToString(info.shape),
                                    "; extents are at least 0 and all bytes fit in 63 bits"));
      }
      if (extent > 0) left /= extent;
    }
    infos.push_back(std::move(info));
  }
  return infos;
}

int64_t BytesOf(const TensorInfo& info) {
  auto bytes = static_cast<int64_t>(SizeOf(info.dtype));
  for (int64_t extent : info.shape) bytes = extent == 0 ? 0 : bytes * extent;
  return bytes;
}

v1::Operation ToProto(Operation operation) {
  switch (operation) {
    case Operation::kForward:
      return v1::OPERATION_FORWARD;
    case Operation::kBackward:
      return v1::OPERATION_BACKWARD;
    case Operation::kDoubleBackward:
      return v1::OPERATION_DOUBLE_BACKWARD;
    case Operation::kJvp:
      return v1::OPERATION_JVP;
  }
  return v1::OPERATION_UNSPECIFIED;
}

v1::DataType ToProto(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16:
      return v1::DATA_TYPE_BF16;
    case DType::kFloat16:
      return v1::DATA_TYPE_FP16;
    case DType::kFloat32:
      return v1::DATA_TYPE_FP32;
    case DType::kFloat64:
      return v1::DATA_TYPE_FP64;
  }
  return v1::DATA_TYPE_UNSPECIFIED;
}

v1::Layout ToProto(Layout layout) {
  switch (layout) {
    case Layout::kBHND:
      return v1::LAYOUT_BHND;
    case Layout::kBNHD:
      return v1::LAYOUT_BNHD;
    case Layout::kTHD:
      return v1::LAYOUT_THD;
  }
  return v1::LAYOUT_UNSPECIFIED;
}

v1::TensorName ToProto(TensorName name) { return static_cast<v1::TensorName>(static_cast<int>(name) + 1); }

v1::TensorSpec ToProto(const AttentionProblem& problem, TensorName name) {
  v1::TensorSpec spec;
  spec.set_name(ToProto(name));
  spec.set_dtype(ToProto(problem.DTypeOf(name)));
  for (int64_t extent : problem.ShapeOf(name)) spec.add_shape(extent);
  return spec;
}

v1::TensorSpec ToProto(const TensorInfo& info) {
  v1::TensorSpec spec;
  spec.set_name(ToProto(info.name));
  spec.set_dtype(ToProto(info.dtype));
  for (int64_t extent : info.shape) spec.add_shape(extent);
  return spec;
}

}  // namespace flashbob::server
