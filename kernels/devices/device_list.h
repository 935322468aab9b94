// Which of a machine's devices to compute on: reads what --devices says. Plain values, no state.
#ifndef FLASHBOB_KERNELS_DEVICES_DEVICE_LIST_H_
#define FLASHBOB_KERNELS_DEVICES_DEVICE_LIST_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace flashbob {

// What a machine has besides its CPU.
struct MachineDevices {
  struct Gpu {
    int number = 0;     // by CUDA's count: "cuda:0"
    std::string model;  // "NVIDIA H200"
  };
  std::vector<Gpu> gpus;    // that the CUDA engine can use
  std::string why_no_gpus;  // in words; empty where there are some
};

struct DeviceChoice {
  std::vector<std::string> names;  // "cpu", or one or more of "cuda:N"
  std::string note;                // what a user may not have expected, and why; empty where there is nothing
};

// `list` is one of
//   auto           every GPU; the CPU where there is none
//   all            every GPU; an error where there is none
//   cpu            the CPU
//   cuda:0,cuda:2  these GPUs, in this order
// Devices that serve together must be alike, since a plan made for one must run on every other: of GPUs of several
// models auto and all take those of the commonest, a list may not mix them, and the CPU serves alone.
// INVALID_ARGUMENT for anything else, NOT_FOUND for a device that is not there; both say what there is.
absl::StatusOr<DeviceChoice> ChooseDevices(std::string_view list, const MachineDevices& machine);

}  // namespace flashbob

#endif  // FLASHBOB_KERNELS_DEVICES_DEVICE_LIST_H_
