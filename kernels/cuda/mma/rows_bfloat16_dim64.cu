#include "kernels/cuda/mma/kernels.h"
#include "kernels/cuda/mma/rows.cuh"

namespace flashbob::cuda::mma {

const PassKernel& RowsBFloat16Dim64() {
  using Config = RowsConfig<__nv_bfloat16, 64>;
  static const PassKernel kernel = MakePassKernel<Config, Config::kQueries, Config::kKeys>(
      "Rows, bf16, 64", reinterpret_cast<const void*>(&TangentRows<Config>));
  return kernel;
}

}  // namespace flashbob::cuda::mma
