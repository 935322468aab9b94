#include "kernels/cpu/host_info.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <optional>
#include <sstream>

namespace flashbob::cpu {
namespace {

// Of this process's control group (version 2), the content of a file; nothing where there is no such file. A process in
// a container sees its own group as the root.
std::optional<std::string> ReadControlGroupFile(const char* name) {
  std::string group = "/";
  std::ifstream membership("/proc/self/cgroup");
  for (std::string line; std::getline(membership, line);) {
    if (line.rfind("0::", 0) == 0) group = line.substr(3);
  }
  for (const std::string& folder : {"/sys/fs/cgroup" + group + "/", std::string("/sys/fs/cgroup/")}) {
    std::ifstream file(folder + name);
    std::string line;
    if (file && std::getline(file, line)) return line;
  }
  return std::nullopt;
}

}  // namespace

std::string CpuModelName() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    const size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "x86-64";
}

int UsableCores() {
  int cores = 1;
  cpu_set_t affinity;
  if (sched_getaffinity(0, sizeof(affinity), &affinity) == 0) {
    cores = CPU_COUNT(&affinity);
  } else {
    cores = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  }
  // "max 100000", or the microseconds of CPU time allowed in each period.
  if (const std::optional<std::string> line = ReadControlGroupFile("cpu.max")) {
    std::istringstream fields(*line);
    double quota = 0;
    double period = 0;
    if (fields >> quota >> period && quota > 0 && period > 0) {
      cores = std::min(cores, static_cast<int>(std::ceil(quota / period)));
    }
  }
  return std::max(cores, 1);
}

int64_t UsableMemoryBytes() {
  int64_t bytes = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  if (const std::optional<std::string> line = ReadControlGroupFile("memory.max")) {
    std::istringstream fields(*line);
    int64_t limit = 0;
    if (fields >> limit && limit > 0) bytes = std::min(bytes, limit);
  }
  return bytes;
}

}  // namespace flashbob::cpu
