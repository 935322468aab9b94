#include "kernels/dtype.h"

namespace flashbob {

const char* Name(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16:
      return "bf16";
    case DType::kFloat16:
      return "fp16";
    case DType::kFloat32:
      return "fp32";
    case DType::kFloat64:
      return "fp64";
  }
  return "unknown";
}

std::optional<DType> ParseDType(std::string_view name) {
  for (DType dtype : kAllDTypes) {
    if (name == Name(dtype)) return dtype;
  }
  return std::nullopt;
}

}  // namespace flashbob
