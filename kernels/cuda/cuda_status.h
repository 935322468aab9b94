// CUDA's error codes as absl::Status: the one place where they meet.
#ifndef FLASHBOB_KERNELS_CUDA_CUDA_STATUS_H_
#define FLASHBOB_KERNELS_CUDA_CUDA_STATUS_H_

#include <cuda_runtime_api.h>

#include <string_view>

#include "absl/status/status.h"

namespace flashbob::cuda {

// OK, or `what` with CUDA's name and text of the error: RESOURCE_EXHAUSTED for want of memory, else UNAVAILABLE, since
// what remains is a device that failed (an error that sticks) or is gone.
absl::Status ToStatus(cudaError_t error, std::string_view what);

}  // namespace flashbob::cuda

#endif  // FLASHBOB_KERNELS_CUDA_CUDA_STATUS_H_
