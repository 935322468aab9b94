// The tensor-core kernels that are built: pass x dtype x head-dim bucket, one translation unit each.
#ifndef FLASHBOB_KERNELS_CUDA_MMA_KERNELS_H_
#define FLASHBOB_KERNELS_CUDA_MMA_KERNELS_H_

#include "kernels/cuda/pass.h"

namespace flashbob::cuda::mma {

// T is bf16 or fp16; the bucket is the least of 64 and 128 that holds head dim and value dim.
const PassKernel& ForwardBFloat16Dim64();
const PassKernel& ForwardBFloat16Dim128();
const PassKernel& ForwardFloat16Dim64();
const PassKernel& ForwardFloat16Dim128();
const PassKernel& RowsBFloat16Dim64();
const PassKernel& RowsBFloat16Dim128();
const PassKernel& RowsFloat16Dim64();
const PassKernel& RowsFloat16Dim128();
// First order: backward, and the tangents of the gradients along tdo alone. Second order: BoB, and the JVP with do.
// Tangent order: the JVP with do and tdo.
const PassKernel& FirstColumnsBFloat16Dim64();
const PassKernel& FirstColumnsBFloat16Dim128();
const PassKernel& FirstColumnsFloat16Dim64();
const PassKernel& FirstColumnsFloat16Dim128();
const PassKernel& SecondColumnsBFloat16Dim64();
const PassKernel& SecondColumnsBFloat16Dim128();
const PassKernel& SecondColumnsFloat16Dim64();
const PassKernel& SecondColumnsFloat16Dim128();
const PassKernel& TangentColumnsBFloat16Dim64();
const PassKernel& TangentColumnsBFloat16Dim128();
const PassKernel& TangentColumnsFloat16Dim64();
const PassKernel& TangentColumnsFloat16Dim128();
// The same with less shared memory, where those above do not fit.
const PassKernel& CompactRowsBFloat16Dim128();
const PassKernel& CompactRowsFloat16Dim128();
const PassKernel& CompactFirstColumnsBFloat16Dim128();
const PassKernel& CompactFirstColumnsFloat16Dim128();
const PassKernel& CompactSecondColumnsBFloat16Dim64();
const PassKernel& CompactSecondColumnsBFloat16Dim128();
const PassKernel& CompactSecondColumnsFloat16Dim64();
const PassKernel& CompactSecondColumnsFloat16Dim128();
// gq of the column kernels' sums, of either bucket.
const PassKernel& FinishFragmentsBFloat16();
const PassKernel& FinishFragmentsFloat16();

}  // namespace flashbob::cuda::mma

#endif  // FLASHBOB_KERNELS_CUDA_MMA_KERNELS_H_
