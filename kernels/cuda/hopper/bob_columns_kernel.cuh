// The column kernels of BoB in the dispatch table, and their launches.
#ifndef FLASHBOB_KERNELS_CUDA_HOPPER_BOB_COLUMNS_KERNEL_CUH_
#define FLASHBOB_KERNELS_CUDA_HOPPER_BOB_COLUMNS_KERNEL_CUH_

#include "kernels/cuda/hopper/bob_columns.cuh"
#include "kernels/cuda/hopper/half_type.h"
#include "kernels/cuda/hopper/kernels.h"
#include "kernels/cuda/hopper/launch.h"
#include "kernels/cuda/hopper/tile_kernel.cuh"

namespace flashbob::cuda::hopper {

template <typename Kernel, HalfType kType>
cudaError_t LaunchBobColumns(const PassKernel& kernel, const PassArgs& args, int64_t ctas, cudaStream_t stream) {
  return LaunchMapped(kernel, kType, args,
                      {{args.k, true, false, args.head_dim, Kernel::kKeys},
                       {args.tk, true, true, args.head_dim, Kernel::kKeys},
                       {args.v, true, false, args.value_dim, Kernel::kKeys},
                       {args.tv, true, true, args.value_dim, Kernel::kKeys},
                       {args.q, false, false, args.head_dim, Kernel::kQueries},
                       {args.tq, false, true, args.head_dim, Kernel::kQueries},
                       {args.dout, false, false, args.value_dim, Kernel::kQueries},
                       {args.gk, true, true, args.head_dim, 64},
                       {args.gv, true, true, args.value_dim, 64}},
                      ctas, stream);
}

// Heads whose blocks take turns where key blocks wait for each other: so many chains of waiting blocks run side by
// side. Elsewhere one head after the other, so that what CTAs read and add to at a time stays in L2.
inline constexpr int32_t kInterleave = 32;

template <bool kOrdered>
const PassKernel* BobColumnsOf(HalfType type, int32_t head_dim) {
  return InstanceOf(type, head_dim, [&]<typename T, int kHeadDim>() -> const PassKernel* {
    using Kernel = BobColumns<T, kHeadDim, kOrdered>;
    static const PassKernel kernel = PassKernelOf<Kernel>({
        .name = kHeadDim == 64 ? "Hopper columns, 64" : "Hopper columns, 128",
        .flops_per_sm = (kHeadDim == 64 ? 4.2e12 : 4.0e12) * (kOrdered ? 0.85 : 1),
        .launch = &LaunchBobColumns<Kernel, kHalfTypeOf<T>>,
        .interleave = kOrdered ? kInterleave : 1,
    });
    return &kernel;
  });
}

}  // namespace flashbob::cuda::hopper

#endif  // FLASHBOB_KERNELS_CUDA_HOPPER_BOB_COLUMNS_KERNEL_CUH_
