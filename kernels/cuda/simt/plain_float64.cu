#include "kernels/cuda/simt/plain_kernels.cuh"

namespace flashbob::cuda {

const PlainKernels& PlainFloat64() {
  static const PlainKernels kernels = simt::MakePlainKernels<double>();
  return kernels;
}

}  // namespace flashbob::cuda
