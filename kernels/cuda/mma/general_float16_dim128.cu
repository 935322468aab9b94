#include "kernels/cuda/mma/general_kernels.cuh"

namespace flashbob::cuda::mma {

const GeneralKernels& GeneralFloat16Dim128() {
  static const GeneralKernels kernels =
      MakeGeneralKernels<__half, 128, CompactTiles<128>, SecondOrder, SecondOrderTiles<128>>();
  return kernels;
}

}  // namespace flashbob::cuda::mma
