// The CUDA engine: attention's derivatives on one NVIDIA GPU (compute capability 8.0 or higher).
//
// This header needs no CUDA and always links: a build without nvcc sees no device. Engines own their memory pool;
// streams and memory of an engine must be given back before the engine goes. Calls leave the engine's GPU current on
// the calling thread.
#ifndef FLASHBOB_KERNELS_CUDA_CUDA_ENGINE_H_
#define FLASHBOB_KERNELS_CUDA_CUDA_ENGINE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/engine.h"

namespace flashbob {

// The GPUs that this process sees and this engine can serve, by CUDA's numbers. Empty where there is no GPU or no
// driver: that is a machine without GPUs, not an error.
std::vector<int> CudaDevices();

// What a GPU of CudaDevices() calls itself, as in "NVIDIA H200".
std::string CudaDeviceModel(int device);

// Why CudaDevices() is empty, in words; "" where it is not.
std::string WhyNoCudaDevices();

// Whether the kernels for Hopper (sm_90a) serve what they can.
enum class HopperKernels : uint8_t {
  kWhereAvailable,
  kNever,     // the portable kernels serve everything
  kRequired,  // an engine of a device or build without them is refused
};

struct CudaEngineOptions {
  // How long one slice of a plan should keep the device at most, by its kernels' estimated rates; some take an eighth
  // more.
  double slice_seconds = 0.020;
  size_t max_shared_bytes = SIZE_MAX;  // of a block: less than the device has chooses the kernels of smaller devices
  HopperKernels hopper = HopperKernels::kWhereAvailable;
};

// The engine of GPU `device`. NOT_FOUND where there is none of that number, UNIMPLEMENTED where it is too old, or has
// no Hopper kernels and they are required.
absl::StatusOr<std::unique_ptr<Engine>> CreateCudaEngine(int device, const CudaEngineOptions& options = {});

}  // namespace flashbob

#endif  // FLASHBOB_KERNELS_CUDA_CUDA_ENGINE_H_
