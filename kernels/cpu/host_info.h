// What the machine is, as far as this process may use it.
#ifndef FLASHBOB_KERNELS_CPU_HOST_INFO_H_
#define FLASHBOB_KERNELS_CPU_HOST_INFO_H_

#include <cstdint>
#include <string>

namespace flashbob::cpu {

// "AMD EPYC"; "x86-64" where the system does not say.
std::string CpuModelName();

// Cores that this process may run on: its affinity mask, cut to its control group's quota.
int UsableCores();

// Memory of the machine, or of the process's control group where that has less.
int64_t UsableMemoryBytes();

}  // namespace flashbob::cpu

#endif  // FLASHBOB_KERNELS_CPU_HOST_INFO_H_
