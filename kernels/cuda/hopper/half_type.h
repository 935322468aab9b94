// The element type of a kernel as a value.
#ifndef FLASHBOB_KERNELS_CUDA_HOPPER_HALF_TYPE_H_
#define FLASHBOB_KERNELS_CUDA_HOPPER_HALF_TYPE_H_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "kernels/cuda/hopper/mapped_args.h"

namespace flashbob::cuda::hopper {

template <typename T>
inline constexpr HalfType kHalfTypeOf = std::is_same_v<T, __nv_bfloat16> ? HalfType::kBFloat16 : HalfType::kFloat16;

}  // namespace flashbob::cuda::hopper

#endif  // FLASHBOB_KERNELS_CUDA_HOPPER_HALF_TYPE_H_
