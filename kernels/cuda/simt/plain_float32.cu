#include "kernels/cuda/simt/plain_kernels.cuh"

namespace flashbob::cuda {

const PlainKernels& PlainFloat32() {
  static const PlainKernels kernels = simt::MakePlainKernels<float>();
  return kernels;
}

}  // namespace flashbob::cuda
