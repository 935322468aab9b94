#include "kernels/cuda/mma/general_kernels.cuh"

namespace flashbob::cuda::mma {

const GeneralKernels& GeneralFloat16Dim256() {
  static const GeneralKernels kernels = MakeGeneralKernels<__half, 256, Dim256Tiles>();
  return kernels;
}

}  // namespace flashbob::cuda::mma
