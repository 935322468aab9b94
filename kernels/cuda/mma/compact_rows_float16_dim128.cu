#include "kernels/cuda/mma/kernels.h"
#include "kernels/cuda/mma/rows.cuh"

namespace flashbob::cuda::mma {

const PassKernel& CompactRowsFloat16Dim128() {
  using Config = RowsConfig<__half, 128, 2>;
  static const PassKernel kernel = MakePassKernel<Config, Config::kQueries, Config::kKeys>(
      "CompactRows, fp16, 128", reinterpret_cast<const void*>(&TangentRows<Config>));
  return kernel;
}

}  // namespace flashbob::cuda::mma
