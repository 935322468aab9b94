#define FLASHBOB_VECTOR_BYTES 32
#include "kernels/cpu/elementwise_kernels.h"

namespace flashbob::cpu::v3 {

ElementwiseKernels<float> Float32Kernels() { return Kernels<float>(); }
ElementwiseKernels<double> Float64Kernels() { return Kernels<double>(); }

}  // namespace flashbob::cpu::v3
