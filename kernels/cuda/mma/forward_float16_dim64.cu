#include "kernels/cuda/mma/forward.cuh"
#include "kernels/cuda/mma/kernels.h"

namespace flashbob::cuda::mma {

const PassKernel& ForwardFloat16Dim64() {
  using Config = ForwardConfig<__half, 64>;
  static const PassKernel kernel = MakePassKernel<Config, Config::kQueries, Config::kKeys>(
      "Forward, fp16, 64", reinterpret_cast<const void*>(&Forward<Config>));
  return kernel;
}

}  // namespace flashbob::cuda::mma
