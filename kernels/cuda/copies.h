// Several small copies between page-locked host memory and device memory as one launch: a copy of its own costs each a
// call and, between copy engines and multiprocessors, a hand-over.
#ifndef FLASHBOB_KERNELS_CUDA_COPIES_H_
#define FLASHBOB_KERNELS_CUDA_COPIES_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace flashbob::cuda {

inline constexpr int32_t kMostCopies = 16;
// Of addresses and sizes, in bytes.
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

// Every address must be one that the current device reaches. Neither allocates nor waits.
cudaError_t LaunchCopies(const Copies& copies, cudaStream_t stream);

}  // namespace flashbob::cuda

#endif  // FLASHBOB_KERNELS_CUDA_COPIES_H_
