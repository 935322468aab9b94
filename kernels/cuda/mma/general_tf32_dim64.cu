#include "kernels/cuda/mma/general_kernels.cuh"

namespace flashbob::cuda::mma {

const GeneralKernels& GeneralTf32Dim64() {
  static const GeneralKernels kernels = MakeGeneralKernels<float, 64, Tf32Tiles<64>>();
  return kernels;
}

}  // namespace flashbob::cuda::mma
