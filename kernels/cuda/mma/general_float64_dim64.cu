#include "kernels/cuda/mma/general_kernels.cuh"

namespace flashbob::cuda::mma {

const GeneralKernels& GeneralFloat64Dim64() {
  static const GeneralKernels kernels = MakeGeneralKernels<double, 64, Float64Tiles>();
  return kernels;
}

}  // namespace flashbob::cuda::mma
