#include "kernels/devices/devices.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kernels/cpu/cpu_engine.h"
#include "kernels/cuda/cuda_engine.h"

namespace flashbob {

MachineDevices FindDevices() {
  MachineDevices machine;
  for (int device : CudaDevices()) machine.gpus.push_back({device, CudaDeviceModel(device)});
  machine.why_no_gpus = WhyNoCudaDevices();
  return machine;
}

absl::StatusOr<std::unique_ptr<Engine>> CreateEngine(const std::string& device, int cpu_threads) {
  if (device == "cpu") return cpu::CreateCpuEngine({.threads = cpu_threads});
  int number = -1;
  const size_t colon = device.find(':');
  if (colon == std::string::npos || !absl::SimpleAtoi(device.substr(colon + 1), &number)) {
    return absl::InvalidArgumentError(absl::StrCat("device \"", device, "\" is neither cpu nor cuda:N"));
  }
  return CreateCudaEngine(number);
}

}  // namespace flashbob
