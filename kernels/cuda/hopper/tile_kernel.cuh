// What the kernels that stream tiles have in common: the frame of the __global__ function, in which one producer
// thread feeds warpgroups of consumers, and the entry in the dispatch table.
//
// A Kernel (Forward, BobRows, ...) says which Walk its CTAs take, over blocks of kOwned rows and tiles of kStreamed
// ones; how many threads consume, with how many registers each; what lies in its kSharedBytes of shared memory
// (InitBarriers, StoreInfo, InfoAt); and what its threads do (Produce, Consume).
#ifndef FLASHBOB_KERNELS_CUDA_HOPPER_TILE_KERNEL_CUH_
#define FLASHBOB_KERNELS_CUDA_HOPPER_TILE_KERNEL_CUH_

#include "kernels/cuda/hopper/half_type.h"
#include "kernels/cuda/hopper/mapped_args.h"
#include "kernels/cuda/hopper/walk.h"
#include "kernels/cuda/tile/hopper/barrier.cuh"
#include "kernels/cuda/tile/hopper/registers.cuh"

namespace flashbob::cuda::hopper {

// A CTA's number in the launch: its own, or, where the order of adds matters, the next ticket. All threads call it;
// `slot` is four bytes of shared memory.
__device__ inline int64_t TakeNumber(const PassArgs& pass, uint32_t slot) {
  if (pass.ticket == nullptr) return blockIdx.x;
  if (threadIdx.x == 0) StoreShared(slot, static_cast<uint32_t>(atomicAdd(pass.ticket, 1)));
  __syncthreads();
  return LoadShared(slot);
}

template <typename Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, 1) TileKernel(const __grid_constant__ MappedArgs args) {
  extern __shared__ __align__(1024) unsigned char dynamic_shared[];
  const uint32_t shared = SharedAddress(dynamic_shared);
  if (shared % 1024 != 0) __trap();
  int64_t number = blockIdx.x;
  if constexpr (Kernel::kTakesTickets) number = TakeNumber(args.pass, Kernel::InfoAt(shared, Kernel::kLast));
  const typename Kernel::Walk walk(args, number, Kernel::kOwned, Kernel::kStreamed);
  const WalkShare share(args.pass, number, walk.steps, walk.masked_steps);
  if (!share.active) return;
  if (threadIdx.x == 0) {
    Kernel::InitBarriers(shared);
    FenceBarrierInit();
    Kernel::StoreInfo(shared, number, walk);
  }
  __syncthreads();
  const uint32_t warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
  if (warpgroup == Kernel::kConsumers / 128) {
    ReleaseRegisters<24>();
    if (threadIdx.x == Kernel::kConsumers) Kernel::Produce(args, shared, walk, share);
  } else {
    ClaimRegisters<Kernel::kConsumerRegisters>();
    Kernel::Consume(args, shared, walk, share, warpgroup);
  }
}

// What the dispatch table knows of a Kernel besides what it says itself.
struct TileKernelFacts {
  const char* name;
  double flops_per_sm;  // on an H200
  decltype(PassKernel::launch) launch;
  int32_t interleave = 1;
};

template <typename Kernel>
PassKernel PassKernelOf(const TileKernelFacts& facts) {
  return {
      .name = facts.name,
      .owned = Kernel::kOwned,
      .streamed = Kernel::kStreamed,
      .threads = Kernel::kThreads,
      .ctas_per_sm = 1,
      .shared_bytes = Kernel::kSharedBytes,
      .state_bytes = static_cast<size_t>(Kernel::kStateBytes),
      .flops_per_sm = facts.flops_per_sm,
      .function = reinterpret_cast<const void*>(&TileKernel<Kernel>),
      .filled_dim = Kernel::kHeadDimension,
      .launch = facts.launch,
      .interleave = facts.interleave,
      .compact_walk = true,
  };
}

}  // namespace flashbob::cuda::hopper

#endif  // FLASHBOB_KERNELS_CUDA_HOPPER_TILE_KERNEL_CUH_
