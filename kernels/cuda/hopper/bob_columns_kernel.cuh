// The column kernels of BoB as kernels, and their launches.
#ifndef FLASHBOB_KERNELS_CUDA_HOPPER_BOB_COLUMNS_KERNEL_CUH_
#define FLASHBOB_KERNELS_CUDA_HOPPER_BOB_COLUMNS_KERNEL_CUH_

#include "kernels/cuda/hopper/bob_columns.cuh"
#include "kernels/cuda/hopper/bob_columns_producer.cuh"
#include "kernels/cuda/hopper/half_type.h"
#include "kernels/cuda/hopper/kernels.h"
#include "kernels/cuda/hopper/launch.h"

namespace flashbob::cuda::hopper {

template <typename Kernel>
__global__ void __launch_bounds__(384, 1) BobColumnsKernel(const __grid_constant__ MappedArgs args) {
  extern __shared__ __align__(1024) unsigned char dynamic_shared[];
  const uint32_t shared = SharedAddress(dynamic_shared);
  if (shared % 1024 != 0) __trap();
  const int64_t number = TakeNumber(args.pass, Kernel::InfoAt(shared, Kernel::kLast));
  const ColumnWalk walk(args, number, Kernel::kKeys, Kernel::kQueries);
  const WalkShare share(args.pass, number, walk.steps, walk.masked_steps);
  if (!share.active) return;
  if (threadIdx.x == 0) {
    InitBarrier(Kernel::KeysLoaded(shared), 1);
    for (int stage = 0; stage < Kernel::kStages; ++stage) {
      InitBarrier(Kernel::FullStage(shared, stage), 1);
      InitBarrier(Kernel::EmptyStage(shared, stage), 8 * kArrivalsOfWarp);
    }
    FenceBarrierInit();
    Kernel::StoreInfo(shared, number, walk);
  }
  __syncthreads();
  const uint32_t warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
  if (warpgroup == 2) {
    ReleaseRegisters<24>();
    if (threadIdx.x == 256) ProduceColumns<Kernel>(args, shared, walk, share);
  } else {
    ClaimRegisters<240>();
    Kernel::Consume(args, shared, share, warpgroup);
  }
}

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

template <typename T, int kHeadDim, bool kOrdered>
const PassKernel* BobColumnsOf() {
  using Kernel = BobColumns<T, kHeadDim, kOrdered>;
  // On an H200.
  constexpr double kFlopsPerSm = (kHeadDim == 64 ? 4.2e12 : 4.0e12) * (kOrdered ? 0.85 : 1);
  static const PassKernel kernel = {
      .name = kHeadDim == 64 ? "Hopper columns, 64" : "Hopper columns, 128",
      .owned = Kernel::kKeys,
      .streamed = Kernel::kQueries,
      .threads = Kernel::kThreads,
      .ctas_per_sm = 1,
      .shared_bytes = Kernel::kSharedBytes,
      .state_bytes = static_cast<size_t>(Kernel::kStateBytes),
      .flops_per_sm = kFlopsPerSm,
      .function = reinterpret_cast<const void*>(&BobColumnsKernel<Kernel>),
      .filled_dim = kHeadDim,
      .launch = &LaunchBobColumns<Kernel, kHalfTypeOf<T>>,
      .interleave = kOrdered ? kInterleave : 1,
      .compact_walk = true,
  };
  return &kernel;
}

}  // namespace flashbob::cuda::hopper

#endif  // FLASHBOB_KERNELS_CUDA_HOPPER_BOB_COLUMNS_KERNEL_CUH_
