#include "kernels/cuda/mma/general_kernels.cuh"

namespace flashbob::cuda::mma {

const GeneralKernels& GeneralTf32Dim128() {
  static const GeneralKernels kernels = MakeGeneralKernels<float, 128, Tf32Tiles<128>>();
  return kernels;
}

}  // namespace flashbob::cuda::mma
