// The kernels of sm_90a that are built, for kernel_set.cc.
//
// Every function answers null in a build whose architectures have no sm_90a. `head_dim` is a bucket, 64 or 128: the
// least that holds head dim and value dim. They read and write row scalars and sums of gQ in their own order
// (mapped_args.h), so a set takes rows, columns and finish from here, or none of them.
#ifndef FLASHBOB_KERNELS_CUDA_HOPPER_KERNELS_H_
#define FLASHBOB_KERNELS_CUDA_HOPPER_KERNELS_H_

#include <cstdint>

#include "kernels/cuda/hopper/mapped_args.h"
#include "kernels/cuda/pass.h"

namespace flashbob::cuda::hopper {

// Rows of BoB and of the JVP, where there is no tdo.
const PassKernel* Rows(HalfType type, int32_t head_dim);
// Columns of BoB, and of the JVP with do and without tdo. They add to gq_sum whether gQ is wanted or not.
const PassKernel* SecondColumns(HalfType type, int32_t head_dim);
// The same, key blocks adding in turn (PassArgs::turn, one a warp and tile): the same bits come out every time.
const PassKernel* OrderedSecondColumns(HalfType type, int32_t head_dim);
// gq of their sums. Owns the rows of a tile of the column pass.
const PassKernel* Finish(HalfType type, int32_t head_dim);

// Forward, of a positive scale.
const PassKernel* ForwardOf(HalfType type, int32_t head_dim);
// Row scalars and columns of backward, for Finish. Rows are padded to kFirstColumnQueries.
const PassKernel* RowDotsOf(HalfType type, int32_t head_dim);
const PassKernel* FirstColumnsOf(HalfType type, int32_t head_dim);

// Turns of a tile of the column pass in PassArgs::turn.
inline constexpr int32_t kTurnsOfTile = 8;

}  // namespace flashbob::cuda::hopper

#endif  // FLASHBOB_KERNELS_CUDA_HOPPER_KERNELS_H_
