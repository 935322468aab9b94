#include "kernels/cuda/mma/general_kernels.cuh"

namespace flashbob::cuda::mma {

const GeneralKernels& GeneralFloat16Dim64() {
  static const GeneralKernels kernels =
      MakeGeneralKernels<__half, 64, CompactTiles<64>, SecondOrder, SecondOrderTiles<64>>();
  return kernels;
}

}  // namespace flashbob::cuda::mma
