#include "kernels/cuda/mma/kernels.h"
#include "kernels/cuda/mma/rows.cuh"

namespace flashbob::cuda::mma {

const PassKernel& RowsBFloat16Dim128() {
  using Config = RowsConfig<__nv_bfloat16, 128>;
  static const PassKernel kernel = MakePassKernel<Config, Config::kQueries, Config::kKeys>(
      "Rows, bf16, 128", reinterpret_cast<const void*>(&TangentRows<Config>));
  return kernel;
}

}  // namespace flashbob::cuda::mma
