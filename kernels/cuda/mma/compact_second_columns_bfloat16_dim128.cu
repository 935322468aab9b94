#include "kernels/cuda/mma/columns.cuh"
#include "kernels/cuda/mma/kernels.h"

namespace flashbob::cuda::mma {

const PassKernel& CompactSecondColumnsBFloat16Dim128() {
  using Config = ColumnsConfig<__nv_bfloat16, 128, SecondOrder, CompactTiles<128>>;
  static const PassKernel kernel = MakePassKernel<Config, Config::kKeys, Config::kQueries>(
      "CompactSecondColumns, bf16, 128", reinterpret_cast<const void*>(&Columns<Config>));
  return kernel;
}

}  // namespace flashbob::cuda::mma
