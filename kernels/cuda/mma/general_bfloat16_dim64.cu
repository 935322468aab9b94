#include "kernels/cuda/mma/general_kernels.cuh"

namespace flashbob::cuda::mma {

const GeneralKernels& GeneralBFloat16Dim64() {
  static const GeneralKernels kernels =
      MakeGeneralKernels<__nv_bfloat16, 64, CompactTiles<64>, SecondOrder, SecondOrderTiles<64>>();
  return kernels;
}

}  // namespace flashbob::cuda::mma
