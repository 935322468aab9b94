#include "kernels/cpu/elementwise.h"

namespace flashbob::cpu {

bool CpuHasV4() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

template <>
ElementwiseKernels<float> SelectElementwiseKernels<float>() {
  return CpuHasV4() ? v4::Float32Kernels() : v3::Float32Kernels();
}

template <>
ElementwiseKernels<double> SelectElementwiseKernels<double>() {
  return CpuHasV4() ? v4::Float64Kernels() : v3::Float64Kernels();
}

}  // namespace flashbob::cpu
