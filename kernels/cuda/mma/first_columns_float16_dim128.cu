#include "kernels/cuda/mma/columns.cuh"
#include "kernels/cuda/mma/kernels.h"

namespace flashbob::cuda::mma {

const PassKernel& FirstColumnsFloat16Dim128() {
  using Config = ColumnsConfig<__half, 128, FirstOrder, FirstOrderTiles<128>>;
  static const PassKernel kernel = MakePassKernel<Config, Config::kKeys, Config::kQueries>(
      "FirstColumns, fp16, 128", reinterpret_cast<const void*>(&Columns<Config>));
  return kernel;
}

}  // namespace flashbob::cuda::mma
