// What becomes of a CTA's sums where others do the rest of its item: the next launch (suspended items), or CTAs at its
// side (parts).
//
// A slot of PassArgs::state holds a CTA's sums in thread order, four floats a thread at a time.
#ifndef FLASHBOB_KERNELS_CUDA_HOPPER_STATE_CUH_
#define FLASHBOB_KERNELS_CUDA_HOPPER_STATE_CUH_

#include "kernels/cuda/hopper/mapped_args.h"
#include "kernels/cuda/tile/hopper/barrier.cuh"
#include "kernels/cuda/tile/hopper/registers.cuh"

namespace flashbob::cuda::hopper {

inline constexpr int kStateThreads = 256;      // of most kernels
inline constexpr uint32_t kStateBarrier = 15;  // named

__device__ inline float4* StateOf(const PassArgs& pass, int64_t slot, int64_t bytes) {
  return reinterpret_cast<float4*>(static_cast<char*>(pass.state) + slot * bytes) + threadIdx.x;
}

template <int kThreads = kStateThreads, int kCount>
__device__ inline float4* SaveState(float4* at, const float (&sums)[kCount]) {
  static_assert(kCount % 4 == 0);
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    *at = {sums[i], sums[i + 1], sums[i + 2], sums[i + 3]};
    at += kThreads;
  }
  return at;
}

template <int kThreads = kStateThreads, int kCount>
__device__ inline const float4* AddState(const float4* at, float (&sums)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    const float4 value = __ldcg(at);
    sums[i] += value.x;
    sums[i + 1] += value.y;
    sums[i + 2] += value.z;
    sums[i + 3] += value.w;
    at += kThreads;
  }
  return at;
}

// After this CTA saved its sums: whether all other parts of its item have. Then the item is this CTA's to finish. All
// state threads call it; `slot` is four bytes of shared memory.
template <int kThreads = kStateThreads>
__device__ inline bool LastOfParts(const PassArgs& pass, int64_t number, uint32_t slot) {
  __threadfence();
  NamedSync(kStateBarrier, kThreads);
  if (threadIdx.x == 0) {
    int32_t* const arrivals = pass.arrivals + number / pass.parts;
    const bool last = atomicAdd(arrivals, 1) == pass.parts - 1;
    if (last) *arrivals = 0;
    StoreShared(slot, last ? 1u : 0u);
  }
  NamedSync(kStateBarrier, kThreads);
  __threadfence();
  return LoadShared(slot) != 0;
}

}  // namespace flashbob::cuda::hopper

#endif  // FLASHBOB_KERNELS_CUDA_HOPPER_STATE_CUH_
