// The element type of a kernel as a value, and the instance of a kernel for a value.
#ifndef FLASHBOB_KERNELS_CUDA_HOPPER_HALF_TYPE_H_
#define FLASHBOB_KERNELS_CUDA_HOPPER_HALF_TYPE_H_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/hopper/mapped_args.h"

namespace flashbob::cuda::hopper {

template <typename T>
inline constexpr HalfType kHalfTypeOf = std::is_same_v<T, __nv_bfloat16> ? HalfType::kBFloat16 : HalfType::kFloat16;

// of.template operator()<T, kHeadDim>() of the element type and the bucket that are meant.
template <typename Of>
auto InstanceOf(HalfType type, int32_t head_dim, const Of& of) {
  const auto of_type = [&]<typename T>() {
    return head_dim == 64 ? of.template operator()<T, 64>() : of.template operator()<T, 128>();
  };
  return type == HalfType::kBFloat16 ? of_type.template operator()<__nv_bfloat16>()
                                     : of_type.template operator()<__half>();
}

}  // namespace flashbob::cuda::hopper

#endif  // FLASHBOB_KERNELS_CUDA_HOPPER_HALF_TYPE_H_
