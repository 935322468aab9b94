#include "kernels/cuda/simt/plain_kernels.cuh"

namespace flashbob::cuda {

const PlainKernels& PlainFloat16() {
  static const PlainKernels kernels = simt::MakePlainKernels<__half>();
  return kernels;
}

}  // namespace flashbob::cuda
