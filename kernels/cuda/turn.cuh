// The order of adds of a deterministic column pass: key blocks add to a row tile of gQ one after the other.
//
// `turn` of a tile is the key block whose turn it is. A block waits only for the block before it, and only where that
// one adds to the tile too; blocks take their numbers by ticket, so the one waited for has started already.
#ifndef FLASHBOB_KERNELS_CUDA_TURN_CUH_
#define FLASHBOB_KERNELS_CUDA_TURN_CUH_

#include <cuda/atomic>

#include "kernels/cuda/pass.h"

namespace flashbob::cuda {

// The item of this CTA: its number in the launch, or, where the order matters, the next ticket. All threads call it.
__device__ inline int64_t TakeItem(const PassArgs& args, int64_t* slot) {
  __shared__ int32_t number;
  int32_t mine = static_cast<int32_t>(blockIdx.x);
  if (args.ticket != nullptr) {
    if (threadIdx.x == 0) number = atomicAdd(args.ticket, 1);
    __syncthreads();
    mine = number;
  }
  *slot = mine;
  return args.item_begin + mine;
}

__device__ inline void AwaitTurn(int32_t* turn, int32_t block, bool previous_adds) {
  if (previous_adds && threadIdx.x == 0) {
    ::cuda::atomic_ref<int32_t, ::cuda::thread_scope_device> value(*turn);
    while (value.load(::cuda::memory_order_acquire) < block) __nanosleep(64);
  }
  __syncthreads();
}

__device__ inline void PassTurn(int32_t* turn, int32_t block) {
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    ::cuda::atomic_ref<int32_t, ::cuda::thread_scope_device> value(*turn);
    value.store(block + 1, ::cuda::memory_order_release);
  }
}

}  // namespace flashbob::cuda

#endif  // FLASHBOB_KERNELS_CUDA_TURN_CUH_
