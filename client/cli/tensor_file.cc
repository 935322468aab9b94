#include "client/cli/tensor_file.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"

namespace flashbob::cli {
namespace {

std::optional<DType> ToDType(safetensors::DType dtype) {
  switch (dtype) {
    case safetensors::DType::kBF16:
      return DType::kBFloat16;
    case safetensors::DType::kF16:
      return DType::kFloat16;
    case safetensors::DType::kF32:
      return DType::kFloat32;
    case safetensors::DType::kF64:
      return DType::kFloat64;
    default:
      return std::nullopt;
  }
}

safetensors::DType ToFileDType(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16:
      return safetensors::DType::kBF16;
    case DType::kFloat16:
      return safetensors::DType::kF16;
    case DType::kFloat32:
      return safetensors::DType::kF32;
    case DType::kFloat64:
      return safetensors::DType::kF64;
  }
  return safetensors::DType::kF32;
}

}  // namespace

absl::StatusOr<FileInputs> InputsOf(const safetensors::File& file, Operation operation) {
  const TensorSet allowed = Computation::AllowedInputs(operation);
  FileInputs inputs;
  for (const safetensors::Tensor& tensor : file.tensors()) {
    if (tensor.name == "cu_seqlens_q") {
      FLASHBOB_ASSIGN_OR_RETURN(inputs.cu_seqlens_q, ToIntegers(tensor));
      continue;
    }
    if (tensor.name == "cu_seqlens_k") {
      FLASHBOB_ASSIGN_OR_RETURN(inputs.cu_seqlens_k, ToIntegers(tensor));
      continue;
    }
    const std::optional<TensorName> name = ParseTensorName(tensor.name);
    if (!name.has_value() || !allowed.Has(*name)) {
      inputs.ignored.push_back(tensor.name);
      continue;
    }
    const std::optional<DType> dtype = ToDType(tensor.dtype);
    if (!dtype.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", tensor.name, " is ", safetensors::Name(tensor.dtype),
                                                     "; attention computes on BF16, F16, F32 and F64"));
    }
    inputs.tensors.push_back({*name, *dtype, tensor.shape});
    inputs.pointers.SetInput(*name, tensor.data.data());
  }
  return inputs;
}

absl::Status WriteOutputs(const std::string& path, const Computation& computation, const std::string& device,
                          const std::map<TensorName, HostBuffer>& outputs) {
  const AttentionProblem& problem = computation.problem();
  const ProblemOptions& options = problem.options();
  const safetensors::Metadata metadata = {
      {"operation", Name(computation.operation())},
      {"layout", Name(options.layout)},
      {"window", absl::StrCat(options.window_left, ",", options.window_right)},
      {"align", Name(options.alignment)},
      {"scale", absl::StrFormat("%.17g", problem.scale())},
      {"probes", absl::StrCat(options.probes)},
      {"tf32", options.allow_tf32 ? "true" : "false"},
      {"deterministic", options.deterministic ? "true" : "false"},
      {"device", device},
      {"flashbob_version", FLASHBOB_VERSION},
  };
  std::vector<safetensors::Tensor> tensors;
  for (const auto& [name, buffer] : outputs) {
    tensors.push_back({Name(name), ToFileDType(problem.DTypeOf(name)), problem.ShapeOf(name), buffer.span()});
  }
  return safetensors::Write(path, tensors, metadata);
}

}  // namespace flashbob::cli
