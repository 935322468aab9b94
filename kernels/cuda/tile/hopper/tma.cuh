// The copy engine (TMA): boxes of a tensor map and plain byte ranges, between global and shared memory.
//
// Every map here is five-dimensional: (column, row, head, batch, probe). A box holds 64 columns, 128 bytes a row,
// 128-byte swizzle: 16-byte chunk c of row r lies at chunk c ^ (r % 8). Boxes start at multiples of 1,024 bytes. What
// lies outside of the tensor is read as zeros and not written.
#ifndef FLASHBOB_KERNELS_CUDA_TILE_HOPPER_TMA_CUH_
#define FLASHBOB_KERNELS_CUDA_TILE_HOPPER_TMA_CUH_

#include <cuda.h>

#include <cstdint>

namespace flashbob::cuda::hopper {

struct BoxCoordinates {
  int32_t column;
  int32_t row;
  int32_t head;
  int32_t batch;
  int32_t probe;
};

__device__ inline void PrefetchMap(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Before a thread's first use of a map that an earlier launch wrote to global memory.
__device__ inline void AcquireMap(const CUtensorMap* map) {
  asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(map) : "memory");
}

// One thread. Completes on `barrier`, which must expect the bytes of the whole box.
__device__ inline void LoadBox(uint32_t shared, const CUtensorMap* map, const BoxCoordinates& at, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5, "
      "%6}], [%7];" ::"r"(shared),
      "l"(map), "r"(at.column), "r"(at.row), "r"(at.head), "r"(at.batch), "r"(at.probe), "r"(barrier)
      : "memory");
}

// One thread, after FenceForAsyncProxy by all writers and a barrier. CommitStores and WaitStores follow.
__device__ inline void StoreBox(const CUtensorMap* map, const BoxCoordinates& at, uint32_t shared) {
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3, %4, %5}], [%6];" ::"l"(map),
      "r"(at.column), "r"(at.row), "r"(at.head), "r"(at.batch), "r"(at.probe), "r"(shared)
      : "memory");
}

__device__ inline void CommitStores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Until the shared memory of this thread's stores may be written again (or the CTA may end).
__device__ inline void WaitStores() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

// One thread; `bytes` a multiple of 16, both sides aligned to 16.
__device__ inline void LoadBytes(uint32_t shared, const void* global, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
               "l"(global), "r"(bytes), "r"(barrier)
               : "memory");
}

}  // namespace flashbob::cuda::hopper

#endif  // FLASHBOB_KERNELS_CUDA_TILE_HOPPER_TMA_CUH_
