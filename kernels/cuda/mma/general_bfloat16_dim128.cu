#include "kernels/cuda/mma/general_kernels.cuh"

namespace flashbob::cuda::mma {

const GeneralKernels& GeneralBFloat16Dim128() {
  static const GeneralKernels kernels =
      MakeGeneralKernels<__nv_bfloat16, 128, CompactTiles<128>, SecondOrder, SecondOrderTiles<128>>();
  return kernels;
}

}  // namespace flashbob::cuda::mma
