#define FLASHBOB_VECTOR_BYTES 64
#include "kernels/cpu/elementwise_kernels.h"

namespace flashbob::cpu::v4 {

ElementwiseKernels<float> Float32Kernels() { return Kernels<float>(); }
ElementwiseKernels<double> Float64Kernels() { return Kernels<double>(); }

}  // namespace flashbob::cpu::v4
