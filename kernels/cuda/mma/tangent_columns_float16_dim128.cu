#include "kernels/cuda/mma/columns.cuh"
#include "kernels/cuda/mma/kernels.h"

namespace flashbob::cuda::mma {

const PassKernel& TangentColumnsFloat16Dim128() {
  using Config = ColumnsConfig<__half, 128, TangentOrder, CompactTiles<128>>;
  static const PassKernel kernel = MakePassKernel<Config, Config::kKeys, Config::kQueries>(
      "TangentColumns, fp16, 128", reinterpret_cast<const void*>(&Columns<Config>));
  return kernel;
}

}  // namespace flashbob::cuda::mma
