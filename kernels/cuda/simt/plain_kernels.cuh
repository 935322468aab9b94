// The PlainKernels of one dtype. One translation unit a dtype includes this, so that they build apart.
#ifndef FLASHBOB_KERNELS_CUDA_SIMT_PLAIN_KERNELS_CUH_
#define FLASHBOB_KERNELS_CUDA_SIMT_PLAIN_KERNELS_CUH_

#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/kernel_set.h"
#include "kernels/cuda/simt/columns.cuh"
#include "kernels/cuda/simt/forward.cuh"
#include "kernels/cuda/simt/rows.cuh"

namespace flashbob::cuda::simt {

template <typename T>
PlainKernels MakePlainKernels() {
  using Real = typename RealOf<T>::Type;
  using Sizes = Tile<Real>;
  // Measured on an H200 (README.md), at the head dim where they are slowest.
  constexpr bool kDouble = sizeof(Real) == 8;
  const auto pass = [&](const char* name, size_t state_bytes, double flops_per_sm, const void* function) {
    return PassKernel{name, Sizes::kOwned, Sizes::kStreamed, kThreads, 1, 0, state_bytes, flops_per_sm, function};
  };
  const auto over_rows = [](const char* name, const void* function) {
    return PassKernel{name, 0, 0, kElementwiseThreads, 8, 0, 0, 0, function};
  };
  PlainKernels kernels;
  kernels.forward = pass("plain forward", kForwardStateBytes<Real>, kDouble ? 14e9 : 50e9,
                         reinterpret_cast<const void*>(&Forward<T>));
  kernels.rows =
      pass("plain rows", kRowsStateBytes<Real>, kDouble ? 15e9 : 44e9, reinterpret_cast<const void*>(&TangentRows<T>));
  kernels.columns = pass("plain columns", kColumnsStateBytes<Real>, kDouble ? 13e9 : 32e9,
                         reinterpret_cast<const void*>(&Columns<T>));
  kernels.row_dots = over_rows("row dots", reinterpret_cast<const void*>(&RowDots<T>));
  kernels.finish = over_rows("finish", reinterpret_cast<const void*>(&FinishQueries<T>));
  return kernels;
}

}  // namespace flashbob::cuda::simt

#endif  // FLASHBOB_KERNELS_CUDA_SIMT_PLAIN_KERNELS_CUH_
