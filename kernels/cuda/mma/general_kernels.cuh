// The general kernels of one dtype and head-dim bucket. One translation unit each includes this, so that they build
// apart.
#ifndef FLASHBOB_KERNELS_CUDA_MMA_GENERAL_KERNELS_CUH_
#define FLASHBOB_KERNELS_CUDA_MMA_GENERAL_KERNELS_CUH_

#include "kernels/cuda/mma/columns.cuh"
#include "kernels/cuda/mma/forward.cuh"
#include "kernels/cuda/mma/kernels.h"
#include "kernels/cuda/mma/rows.cuh"

namespace flashbob::cuda::mma {

// Tiles: of the columns of any terms; SecondTiles: of those without tdo.
template <typename T, int kDim, typename Tiles, typename SecondTerms = AllTerms, typename SecondTiles = Tiles>
GeneralKernels MakeGeneralKernels() {
  using ForForward = ForwardConfig<T, kDim, true>;
  using ForRows = RowsConfig<T, kDim, 4, true>;
  using ForColumns = ColumnsConfig<T, kDim, AllTerms, Tiles, true>;
  using ForSecondColumns = ColumnsConfig<T, kDim, SecondTerms, SecondTiles, true>;
  return {
      .forward = MakePassKernel<ForForward, ForForward::kQueries, ForForward::kKeys>(
          "general forward", reinterpret_cast<const void*>(&Forward<ForForward>)),
      .rows = MakePassKernel<ForRows, ForRows::kQueries, ForRows::kKeys>(
          "general rows", reinterpret_cast<const void*>(&TangentRows<ForRows>)),
      .columns = MakePassKernel<ForColumns, ForColumns::kKeys, ForColumns::kQueries>(
          "general columns", reinterpret_cast<const void*>(&Columns<ForColumns>)),
      .second_columns = MakePassKernel<ForSecondColumns, ForSecondColumns::kKeys, ForSecondColumns::kQueries>(
          "general second columns", reinterpret_cast<const void*>(&Columns<ForSecondColumns>)),
  };
}

}  // namespace flashbob::cuda::mma

#endif  // FLASHBOB_KERNELS_CUDA_MMA_GENERAL_KERNELS_CUH_
