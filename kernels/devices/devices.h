// This machine's devices, and their engines. Free functions, any thread.
#ifndef FLASHBOB_KERNELS_DEVICES_DEVICES_H_
#define FLASHBOB_KERNELS_DEVICES_DEVICES_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/devices/device_list.h"
#include "kernels/engine.h"

namespace flashbob {

MachineDevices FindDevices();

// The engine of a device as ChooseDevices names it. `cpu_threads` is the CPU engine's; 0: one for each core.
absl::StatusOr<std::unique_ptr<Engine>> CreateEngine(const std::string& device, int cpu_threads = 0);

}  // namespace flashbob

#endif  // FLASHBOB_KERNELS_DEVICES_DEVICES_H_
