#include "kernels/cuda/mma/general_kernels.cuh"

namespace flashbob::cuda::mma {

const GeneralKernels& GeneralBFloat16Dim256() {
  static const GeneralKernels kernels = MakeGeneralKernels<__nv_bfloat16, 256, Dim256Tiles>();
  return kernels;
}

}  // namespace flashbob::cuda::mma
