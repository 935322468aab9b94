// DeviceTraits: what the choice of kernels and the cutting of plans look at of a GPU. Plain data.
#ifndef FLASHBOB_KERNELS_CUDA_DEVICE_TRAITS_H_
#define FLASHBOB_KERNELS_CUDA_DEVICE_TRAITS_H_

#include <cstddef>

#include "absl/status/statusor.h"

namespace flashbob::cuda {

struct DeviceTraits {
  int major = 0;  // compute capability
  int minor = 0;
  int multiprocessors = 0;
  size_t shared_bytes_per_block = 0;  // with opt-in
  bool hopper_kernels = false;        // it runs code for sm_90a, this build has it, and it may be used
};

// Those of GPU `device`.
absl::StatusOr<DeviceTraits> ReadDeviceTraits(int device);

}  // namespace flashbob::cuda

#endif  // FLASHBOB_KERNELS_CUDA_DEVICE_TRAITS_H_
