#include "kernels/cuda/mma/forward.cuh"
#include "kernels/cuda/mma/kernels.h"

namespace flashbob::cuda::mma {

const PassKernel& ForwardFloat16Dim128() {
  using Config = ForwardConfig<__half, 128>;
  static const PassKernel kernel = MakePassKernel<Config, Config::kQueries, Config::kKeys>(
      "Forward, fp16, 128", reinterpret_cast<const void*>(&Forward<Config>));
  return kernel;
}

}  // namespace flashbob::cuda::mma
