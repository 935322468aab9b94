// DType: the element types of tensors, their sizes and names.
#ifndef FLASHBOB_KERNELS_DTYPE_H_
#define FLASHBOB_KERNELS_DTYPE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace flashbob {

enum class DType : uint8_t { kBFloat16, kFloat16, kFloat32, kFloat64 };

inline constexpr DType kAllDTypes[] = {DType::kBFloat16, DType::kFloat16, DType::kFloat32, DType::kFloat64};

// Bytes of one element.
constexpr size_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16:
    case DType::kFloat16:
      return 2;
    case DType::kFloat32:
      return 4;
    case DType::kFloat64:
      return 8;
  }
  return 0;
}

// "bf16", "fp16", "fp32", "fp64".
const char* Name(DType dtype);

// The type of that name, or nothing.
std::optional<DType> ParseDType(std::string_view name);

// The type of lse and tlse, and of sums over a row: fp32, or fp64 where the inputs are.
constexpr DType StatisticsDType(DType dtype) { return dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32; }

}  // namespace flashbob

#endif  // FLASHBOB_KERNELS_DTYPE_H_
