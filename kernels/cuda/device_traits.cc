#include "kernels/cuda/device_traits.h"

#include <cuda_runtime_api.h>

#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/hopper/kernels.h"

namespace flashbob::cuda {

absl::StatusOr<DeviceTraits> ReadDeviceTraits(int device) {
  DeviceTraits traits;
  int shared_bytes = 0;
  const struct {
    cudaDeviceAttr attribute;
    int* value;
  } wanted[] = {
      {cudaDevAttrComputeCapabilityMajor, &traits.major},
      {cudaDevAttrComputeCapabilityMinor, &traits.minor},
      {cudaDevAttrMultiProcessorCount, &traits.multiprocessors},
      {cudaDevAttrMaxSharedMemoryPerBlockOptin, &shared_bytes},
  };
  for (const auto& [attribute, value] : wanted) {
    FLASHBOB_RETURN_IF_ERROR(ToStatus(cudaDeviceGetAttribute(value, attribute, device), "reading a GPU's attributes"));
  }
  traits.shared_bytes_per_block = static_cast<size_t>(shared_bytes);
  // Machine code for sm_90a runs on 9.0 alone.
  traits.hopper_kernels =
      traits.major == 9 && traits.minor == 0 && hopper::Rows(hopper::HalfType::kBFloat16, 64) != nullptr;
  return traits;
}

}  // namespace flashbob::cuda
