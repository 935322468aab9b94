#include "client/cpp/wire.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace flashbob::client {
namespace {

constexpr char kNamePrefix[] = "TENSOR_NAME_";

// "gq" -> TENSOR_NAME_GQ.
absl::StatusOr<v1::TensorName> ToWireName(const std::string& name) {
  v1::TensorName wire = v1::TENSOR_NAME_UNSPECIFIED;
  // Only lower case: what the server gives back is compared with what was asked for.
  const bool known = absl::AsciiStrToLower(name) == name &&
                     v1::TensorName_Parse(absl::StrCat(kNamePrefix, absl::AsciiStrToUpper(name)), &wire);
  if (!known || wire == v1::TENSOR_NAME_UNSPECIFIED) {
    return absl::InvalidArgumentError(absl::StrCat("'", name, "' is no tensor of attention"));
  }
  return wire;
}

v1::DataType ToWire(DataType dtype) {
  switch (dtype) {
    case DataType::kBF16:
      return v1::DATA_TYPE_BF16;
    case DataType::kFP16:
      return v1::DATA_TYPE_FP16;
    case DataType::kFP32:
      return v1::DATA_TYPE_FP32;
    case DataType::kFP64:
      return v1::DATA_TYPE_FP64;
  }
  return v1::DATA_TYPE_UNSPECIFIED;
}

std::optional<DataType> FromWire(int dtype) {
  switch (dtype) {
    case v1::DATA_TYPE_BF16:
      return DataType::kBF16;
    case v1::DATA_TYPE_FP16:
      return DataType::kFP16;
    case v1::DATA_TYPE_FP32:
      return DataType::kFP32;
    case v1::DATA_TYPE_FP64:
      return DataType::kFP64;
    default:
      return std::nullopt;
  }
}

v1::Layout ToWire(Layout layout) {
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

v1::Operation ToWire(Operation operation) {
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

void FillProblem(const AttentionOptions& options, v1::Problem& problem) {
  problem.set_layout(ToWire(options.layout));
  v1::Mask& mask = *problem.mutable_mask();
  mask.set_left(options.window_left);
  mask.set_right(options.causal ? 0 : options.window_right);
  mask.set_alignment(options.alignment == Alignment::kBottomRight ? v1::MASK_ALIGNMENT_BOTTOM_RIGHT
                                                                  : v1::MASK_ALIGNMENT_TOP_LEFT);
  if (options.scale.has_value()) problem.set_scale(*options.scale);
  problem.set_probes(options.probes);
  problem.mutable_cu_seqlens_q()->Add(options.cu_seqlens_q.begin(), options.cu_seqlens_q.end());
  problem.mutable_cu_seqlens_k()->Add(options.cu_seqlens_k.begin(), options.cu_seqlens_k.end());
  problem.set_deterministic(options.deterministic);
  problem.set_fp32_precision(options.allow_tf32 ? v1::FP32_PRECISION_ALLOW_TF32 : v1::FP32_PRECISION_IEEE);
}

PoolInfo ToPoolInfo(const v1::PoolInfo& pool) {
  return {.limit_bytes = pool.limit_bytes(),
          .reserved_bytes = pool.reserved_bytes(),
          .used_bytes = pool.used_bytes(),
          .high_water_bytes = pool.high_water_bytes(),
          .largest_free_bytes = pool.largest_free_bytes()};
}

// What this library has no word for yet is left out: a newer server may serve more.
Capability ToCapability(const v1::Capability& wire) {
  Capability capability;
  for (Operation operation : {Operation::kForward, Operation::kBackward, Operation::kDoubleBackward, Operation::kJvp}) {
    for (int served : wire.operations()) {
      if (served == ToWire(operation)) capability.operations.push_back(operation);
    }
  }
  for (int served : wire.dtypes()) {
    if (const std::optional<DataType> dtype = FromWire(served)) capability.dtypes.push_back(*dtype);
  }
  for (Layout layout : {Layout::kBHND, Layout::kBNHD, Layout::kTHD}) {
    for (int served : wire.layouts()) {
      if (served == ToWire(layout)) capability.layouts.push_back(layout);
    }
  }
  capability.max_head_dim = wire.max_head_dim();
  capability.max_value_dim = wire.max_value_dim();
  capability.device = wire.device();
  return capability;
}

absl::StatusOr<v1::TensorSpec> ToTensorSpec(const NamedTensor& tensor) {
  const TensorView& view = tensor.tensor;
  const std::optional<int64_t> bytes = NumBytes(view.dtype, view.shape);
  const bool fits = bytes.has_value() && static_cast<uint64_t>(*bytes) == view.bytes.size();
  if (!tensor.stored.has_value() && !fits) {
    return absl::InvalidArgumentError(absl::StrCat(tensor.name, " has ", view.bytes.size(), " bytes; ",
                                                   Name(view.dtype), " ", ToString(view.shape), " needs ",
                                                   bytes.has_value() ? absl::StrCat(*bytes) : "an impossible number"));
  }
  if (tensor.stored.has_value() && view.given()) {
    return absl::InvalidArgumentError(absl::StrCat(tensor.name, " is given both here and by handle"));
  }
  v1::TensorSpec spec;
  FLASHBOB_ASSIGN_OR_RETURN(const v1::TensorName name, ToWireName(tensor.name));
  const Shape& shape = tensor.stored.has_value() ? tensor.stored->shape : view.shape;
  spec.set_name(name);
  spec.set_dtype(ToWire(tensor.stored.has_value() ? tensor.stored->dtype : view.dtype));
  spec.mutable_shape()->Add(shape.begin(), shape.end());
  return spec;
}

}  // namespace

absl::StatusOr<v1::ComputeSpec> ToSpec(const Request& request) {
  v1::ComputeSpec spec;
  spec.set_request_id(request.request_id);
  spec.set_operation(ToWire(request.operation));
  spec.set_brief_answer(true);
  FillProblem(request.options, *spec.mutable_problem());
  for (const NamedTensor& input : request.inputs) {
    v1::InputTensor& wire = *spec.add_inputs();
    FLASHBOB_ASSIGN_OR_RETURN(*wire.mutable_tensor(), ToTensorSpec(input));
    if (input.stored.has_value()) {
      wire.set_handle(input.stored->handle);
    } else {
      wire.mutable_inline_();
    }
  }
  for (const WantedOutput& output : request.outputs) {
    v1::OutputTensor& wire = *spec.add_outputs();
    FLASHBOB_ASSIGN_OR_RETURN(const v1::TensorName name, ToWireName(output.name));
    wire.set_name(name);
    if (output.keep.has_value()) {
      wire.mutable_keep()->set_lease_seconds(output.keep->count());
    } else {
      wire.mutable_inline_();
    }
  }
  return spec;
}

absl::StatusOr<v1::PutTensorsSpec> ToPutSpec(const std::vector<NamedTensor>& tensors, std::chrono::seconds lease) {
  v1::PutTensorsSpec spec;
  spec.set_lease_seconds(lease.count());
  for (const NamedTensor& tensor : tensors) {
    FLASHBOB_ASSIGN_OR_RETURN(*spec.add_tensors(), ToTensorSpec(tensor));
  }
  return spec;
}

absl::StatusOr<StoredTensor> ToStoredTensor(const v1::TensorSpec& tensor, const std::string& handle) {
  const std::optional<DataType> dtype = FromWire(tensor.dtype());
  if (!dtype.has_value()) {
    return absl::InternalError(
        absl::StrCat("the server kept a tensor of unknown dtype ", static_cast<int>(tensor.dtype())));
  }
  return StoredTensor{handle, *dtype, Shape(tensor.shape().begin(), tensor.shape().end())};
}

absl::StatusOr<std::string> ToOutputName(const v1::TensorSpec& tensor) {
  const v1::TensorName name = tensor.name();
  if (!v1::TensorName_IsValid(name) || name == v1::TENSOR_NAME_UNSPECIFIED) {
    return absl::InternalError(absl::StrCat("the server sent a tensor of unknown name ", static_cast<int>(name)));
  }
  return absl::AsciiStrToLower(v1::TensorName_Name(name).substr(sizeof(kNamePrefix) - 1));
}

absl::StatusOr<Tensor> ToOutputTensor(const v1::TensorSpec& tensor, std::optional<std::span<std::byte>> into) {
  const std::optional<DataType> dtype = FromWire(tensor.dtype());
  if (!dtype.has_value()) {
    return absl::InternalError(
        absl::StrCat("the server sent a tensor of unknown dtype ", static_cast<int>(tensor.dtype())));
  }
  return Tensor::Create(*dtype, Shape(tensor.shape().begin(), tensor.shape().end()), into);
}

std::chrono::nanoseconds ToNanoseconds(const google::protobuf::Duration& duration) {
  // Within nanoseconds of 63 bits, whatever was sent.
  constexpr int64_t kMaxSeconds = 9'000'000'000;
  return std::chrono::seconds(std::clamp(duration.seconds(), -kMaxSeconds, kMaxSeconds)) +
         std::chrono::nanoseconds(duration.nanos());
}

Timings ToTimings(const v1::Timings& timings) {
  return {.receive = ToNanoseconds(timings.receive()),
          .queue = ToNanoseconds(timings.queue()),
          .compute = ToNanoseconds(timings.compute())};
}

ServerInfo ToServerInfo(const v1::GetServerInfoResponse& response) {
  ServerInfo info;
  info.version = response.version();
  for (const v1::Device& device : response.devices()) {
    info.devices.push_back({.name = device.name(),
                            .model = device.model(),
                            .memory = ToPoolInfo(device.memory()),
                            .compute_units = device.compute_units()});
  }
  const v1::Limits& limits = response.limits();
  info.limits = {.max_chunk_bytes = limits.max_chunk_bytes(),
                 .max_message_bytes = limits.max_message_bytes(),
                 .max_request_bytes = limits.max_request_bytes(),
                 .max_queued_requests = limits.max_queued_requests(),
                 .max_metadata_bytes = limits.max_metadata_bytes(),
                 .idle_upload_seconds = limits.idle_upload_seconds(),
                 .max_lease_seconds = limits.max_lease_seconds(),
                 .max_sequences = limits.max_sequences()};
  for (const v1::Capability& capability : response.capabilities()) {
    info.capabilities.push_back(ToCapability(capability));
  }
  const v1::TenantInfo& tenant = response.tenant();
  info.tenant = {.name = tenant.name(),
                 .max_bytes = tenant.max_bytes(),
                 .used_bytes = tenant.used_bytes(),
                 .max_in_flight = tenant.max_in_flight(),
                 .in_flight = tenant.in_flight()};
  info.host_memory = ToPoolInfo(response.host_memory());
  return info;
}

}  // namespace flashbob::client
