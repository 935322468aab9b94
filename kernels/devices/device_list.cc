#include "kernels/devices/device_list.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "kernels/base/status_macros.h"

namespace flashbob {
namespace {

using Gpu = MachineDevices::Gpu;

constexpr char kCpu[] = "cpu";
constexpr char kGpuPrefix[] = "cuda:";

std::string NameOf(const Gpu& gpu) { return absl::StrCat(kGpuPrefix, gpu.number); }

std::string WithModel(const Gpu& gpu) { return absl::StrCat(NameOf(gpu), " (", gpu.model, ")"); }

// "cpu, cuda:0 (NVIDIA H200)", or "cpu alone (why)".
std::string WhatThereIs(const MachineDevices& machine) {
  if (machine.gpus.empty()) return absl::StrCat("cpu alone (", machine.why_no_gpus, ")");
  std::string text = kCpu;
  for (const Gpu& gpu : machine.gpus) absl::StrAppend(&text, ", ", WithModel(gpu));
  return text;
}

DeviceChoice EveryGpu(const MachineDevices& machine) {
  std::map<std::string, int> count;
  for (const Gpu& gpu : machine.gpus) ++count[gpu.model];
  const Gpu* commonest = &machine.gpus.front();
  for (const Gpu& gpu : machine.gpus) {
    if (count[gpu.model] > count[commonest->model]) commonest = &gpu;
  }
  DeviceChoice choice;
  std::vector<std::string> left_out;
  for (const Gpu& gpu : machine.gpus) {
    if (gpu.model == commonest->model) {
      choice.names.push_back(NameOf(gpu));
    } else {
      left_out.push_back(WithModel(gpu));
    }
  }
  if (!left_out.empty()) {
    choice.note = absl::StrCat("GPUs of one model serve together, here the ", commonest->model,
                               "; left out: ", absl::StrJoin(left_out, ", "));
  }
  return choice;
}

absl::StatusOr<Gpu> FindGpu(const std::string& name, const MachineDevices& machine) {
  int number = -1;
  if (name.rfind(kGpuPrefix, 0) != 0 || !absl::SimpleAtoi(name.substr(sizeof(kGpuPrefix) - 1), &number) || number < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "device \"", name, "\" is none of auto, all, cpu and cuda:N; this machine has ", WhatThereIs(machine)));
  }
  const auto found =
      std::find_if(machine.gpus.begin(), machine.gpus.end(), [&](const Gpu& gpu) { return gpu.number == number; });
  if (found == machine.gpus.end()) {
    return absl::NotFoundError(absl::StrCat("no device ", name, "; this machine has ", WhatThereIs(machine)));
  }
  return *found;
}

}  // namespace

absl::StatusOr<DeviceChoice> ChooseDevices(std::string_view list, const MachineDevices& machine) {
  const std::string text(list);
  if (text == kCpu) return DeviceChoice{{kCpu}, ""};
  if (text == "auto" && machine.gpus.empty()) return DeviceChoice{{kCpu}, machine.why_no_gpus};
  if (text == "all" && machine.gpus.empty()) {
    return absl::NotFoundError(absl::StrCat("all GPUs are asked for and there is none: ", machine.why_no_gpus));
  }
  if (text == "auto" || text == "all") return EveryGpu(machine);

  DeviceChoice choice;
  std::vector<Gpu> gpus;
  const std::vector<std::string> names = absl::StrSplit(text, ',');
  for (const std::string& name : names) {
    if (name == kCpu || name == "auto" || name == "all") {
      return absl::InvalidArgumentError(
          absl::StrCat("device ", name, " stands alone, not in the list \"", text, "\"; a list names GPUs"));
    }
    FLASHBOB_ASSIGN_OR_RETURN(Gpu gpu, FindGpu(name, machine));
    std::string canonical = NameOf(gpu);
    if (std::find(choice.names.begin(), choice.names.end(), canonical) != choice.names.end()) {
      return absl::InvalidArgumentError(absl::StrCat("device ", canonical, " comes twice in \"", text, "\""));
    }
    choice.names.push_back(std::move(canonical));
    gpus.push_back(std::move(gpu));
  }
  for (const Gpu& gpu : gpus) {
    if (gpu.model == gpus.front().model) continue;
    return absl::InvalidArgumentError(absl::StrCat("GPUs of one model serve together; ", WithModel(gpus.front()),
                                                   " and ", WithModel(gpu), " take a server each"));
  }
  return choice;
}

}  // namespace flashbob
