// Barriers of sm_90: mbarriers in shared memory (copy engine -> threads, and back) and named barriers (threads only).
#ifndef FLASHBOB_KERNELS_CUDA_TILE_HOPPER_BARRIER_CUH_
#define FLASHBOB_KERNELS_CUDA_TILE_HOPPER_BARRIER_CUH_

#include <cstdint>

namespace flashbob::cuda::hopper {

__device__ inline uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// An mbarrier, by its shared-memory address. A phase ends when `arrivals` threads have arrived and all announced bytes
// have come; waiters name the parity of the phase that they wait for.
__device__ inline void InitBarrier(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// After all InitBarrier and before a barrier sync: makes them visible to the copy engine.
__device__ inline void FenceBarrierInit() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ inline void Arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// A warp is done with what it read: one arrival of its first lane. compute-sanitizer's racecheck does not see that the
// other lanes' reads come before it, so a build for that has every lane arrive.
#ifdef FLASHBOB_RACECHECK
inline constexpr uint32_t kArrivalsOfWarp = 32;
#else
inline constexpr uint32_t kArrivalsOfWarp = 1;
#endif
__device__ inline void ArriveWarp(uint32_t barrier) {
  __syncwarp();
  if (threadIdx.x % 32 < kArrivalsOfWarp) Arrive(barrier);
}

__device__ inline void ArriveExpectBytes(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ inline void Wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra finished;\n"
      "bra again;\n"
      "finished:\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Named barriers 1..15 (0 is __syncthreads). `threads` counts those who arrive and those who sync.
__device__ inline void NamedSync(uint32_t id, uint32_t threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ inline void NamedArrive(uint32_t id, uint32_t threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Orders this thread's ordinary shared-memory writes before what the tensor cores and the copy engine read next.
__device__ inline void FenceForAsyncProxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Moves registers between warpgroups; every warp of the warpgroup executes it.
template <int kRegisters>
__device__ inline void ReleaseRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void ClaimRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// A ring of shared-memory stages: which stage is next, and the parity of its current phase.
template <int kStages>
struct RingPosition {
  uint32_t stage = 0;
  uint32_t parity = 0;

  __device__ void Advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

}  // namespace flashbob::cuda::hopper

#endif  // FLASHBOB_KERNELS_CUDA_TILE_HOPPER_BARRIER_CUH_
