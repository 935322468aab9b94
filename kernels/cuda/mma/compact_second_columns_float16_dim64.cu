#include "kernels/cuda/mma/columns.cuh"
#include "kernels/cuda/mma/kernels.h"

namespace flashbob::cuda::mma {

const PassKernel& CompactSecondColumnsFloat16Dim64() {
  using Config = ColumnsConfig<__half, 64, SecondOrder, CompactTiles<64>>;
  static const PassKernel kernel = MakePassKernel<Config, Config::kKeys, Config::kQueries>(
      "CompactSecondColumns, fp16, 64", reinterpret_cast<const void*>(&Columns<Config>));
  return kernel;
}

}  // namespace flashbob::cuda::mma
