#include "kernels/cuda/mma/columns.cuh"
#include "kernels/cuda/mma/kernels.h"

namespace flashbob::cuda::mma {

const PassKernel& FirstColumnsBFloat16Dim64() {
  using Config = ColumnsConfig<__nv_bfloat16, 64, FirstOrder, FirstOrderTiles<64>>;
  static const PassKernel kernel = MakePassKernel<Config, Config::kKeys, Config::kQueries>(
      "FirstColumns, bf16, 64", reinterpret_cast<const void*>(&Columns<Config>));
  return kernel;
}

}  // namespace flashbob::cuda::mma
