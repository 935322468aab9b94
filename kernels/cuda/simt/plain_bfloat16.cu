#include "kernels/cuda/simt/plain_kernels.cuh"

namespace flashbob::cuda {

const PlainKernels& PlainBFloat16() {
  static const PlainKernels kernels = simt::MakePlainKernels<__nv_bfloat16>();
  return kernels;
}

}  // namespace flashbob::cuda
