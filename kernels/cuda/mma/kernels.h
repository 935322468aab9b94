// The tensor-core kernels that are built: pass x dtype x head-dim bucket, one translation unit each.
#ifndef FLASHBOB_KERNELS_CUDA_MMA_KERNELS_H_
#define FLASHBOB_KERNELS_CUDA_MMA_KERNELS_H_

#include "kernels/cuda/pass.h"

namespace flashbob::cuda::mma {

// The fast kernels: rows that begin at multiples of 16 bytes. The bucket is the least that holds head and value dim.
const PassKernel& ForwardBFloat16Dim64();
const PassKernel& ForwardBFloat16Dim128();
const PassKernel& ForwardFloat16Dim64();
const PassKernel& ForwardFloat16Dim128();
const PassKernel& RowsBFloat16Dim64();
const PassKernel& RowsBFloat16Dim128();
const PassKernel& RowsFloat16Dim64();
const PassKernel& RowsFloat16Dim128();
// First order: backward, and the tangents of the gradients along tdo alone. Second order: BoB, and the JVP with do, of
// all three cotangents or tangents.
const PassKernel& FirstColumnsBFloat16Dim64();
const PassKernel& FirstColumnsBFloat16Dim128();
const PassKernel& FirstColumnsFloat16Dim64();
const PassKernel& FirstColumnsFloat16Dim128();
const PassKernel& SecondColumnsBFloat16Dim64();
const PassKernel& SecondColumnsBFloat16Dim128();
const PassKernel& SecondColumnsFloat16Dim64();
const PassKernel& SecondColumnsFloat16Dim128();
// The same with less shared memory, where those above do not fit.
const PassKernel& CompactRowsBFloat16Dim128();
const PassKernel& CompactRowsFloat16Dim128();
const PassKernel& CompactFirstColumnsBFloat16Dim128();
const PassKernel& CompactFirstColumnsFloat16Dim128();
const PassKernel& CompactSecondColumnsBFloat16Dim64();
const PassKernel& CompactSecondColumnsBFloat16Dim128();
const PassKernel& CompactSecondColumnsFloat16Dim64();
const PassKernel& CompactSecondColumnsFloat16Dim128();

// Kernels for rows of any alignment and any set of tangents, tdo besides them too; those of 256 and of TF32 are all
// that there are of their kind.
struct GeneralKernels {
  PassKernel forward;
  PassKernel rows;
  PassKernel columns;
  PassKernel second_columns;  // without tdo; faster where it is another kernel
};
const GeneralKernels& GeneralBFloat16Dim64();
const GeneralKernels& GeneralBFloat16Dim128();
const GeneralKernels& GeneralBFloat16Dim256();
const GeneralKernels& GeneralFloat16Dim64();
const GeneralKernels& GeneralFloat16Dim128();
const GeneralKernels& GeneralFloat16Dim256();
const GeneralKernels& GeneralFloat64Dim64();
const GeneralKernels& GeneralTf32Dim64();
const GeneralKernels& GeneralTf32Dim128();

// gq of the column kernels' sums, of any bucket.
const PassKernel& FinishFragmentsBFloat16();
const PassKernel& FinishFragmentsFloat16();
const PassKernel& FinishFragmentsFloat64();
const PassKernel& FinishFragmentsTf32();

}  // namespace flashbob::cuda::mma

#endif  // FLASHBOB_KERNELS_CUDA_MMA_KERNELS_H_
