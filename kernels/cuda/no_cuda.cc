// The CUDA engine of a build without nvcc: no device.
#include "absl/strings/str_cat.h"
#include "kernels/cuda/cuda_engine.h"

namespace flashbob {

std::vector<int> CudaDevices() { return {}; }

std::string CudaDeviceModel(int) { return ""; }

std::string WhyNoCudaDevices() { return "this build has no CUDA engine (nvcc was not found)"; }

absl::StatusOr<std::unique_ptr<Engine>> CreateCudaEngine(int device, const CudaEngineOptions&) {
  return absl::NotFoundError(absl::StrCat("no GPU ", device, ": ", WhyNoCudaDevices()));
}

}  // namespace flashbob
