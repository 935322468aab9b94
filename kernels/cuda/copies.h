// Several small copies between page-locked host memory and device memory as one launch: a copy of its own costs each a
// call and, between copy engines and multiprocessors, a hand-over.
#ifndef FLASHBOB_KERNELS_CUDA_COPIES_H_
#define FLASHBOB_KERNELS_CUDA_COPIES_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace flashbob::cuda {

inline constexpr int32_t kMostCopies = 16;
// In bytes: the unit of copying.
inline constexpr size_t kCopyAlignment = 16;

struct Copies {
  struct Piece {
    void* to;
    const void* from;
    size_t bytes;
  };
  Piece pieces[kMostCopies];
  int32_t count = 0;
};

// At most kMostCopies pieces; every address and size must be a multiple of kCopyAlignment, and every address one that
// the current device reaches. Neither allocates nor waits.
cudaError_t LaunchCopies(const Copies& copies, cudaStream_t stream);

}  // namespace flashbob::cuda

#endif  // FLASHBOB_KERNELS_CUDA_COPIES_H_
