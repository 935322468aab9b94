// KernelSet: the kernels that serve one computation, and the table that picks them (README.md shows it in one place).
#ifndef FLASHBOB_KERNELS_CUDA_KERNEL_SET_H_
#define FLASHBOB_KERNELS_CUDA_KERNEL_SET_H_

#include "kernels/computation.h"
#include "kernels/cuda/device_traits.h"
#include "kernels/cuda/pass.h"

namespace flashbob::cuda {

// Kernels of one dtype that serve every problem of it, one a pass, without tensor cores; and the passes over rows.
struct PlainKernels {
  PassKernel forward;
  PassKernel rows;
  PassKernel columns;
  PassKernel row_dots;
  PassKernel finish;
};
const PlainKernels& PlainBFloat16();
const PlainKernels& PlainFloat16();
const PlainKernels& PlainFloat32();
const PlainKernels& PlainFloat64();

// What one computation runs on. All kernels of a set read and write the same types; `log2_columns` says that the column
// kernel takes RowScalars::lse in units of log 2, with P scaled by 2^power_shift.
struct KernelSet {
  PassKernel forward;
  PassKernel rows;
  PassKernel columns;
  PassKernel row_dots;
  PassKernel finish;
  bool log2_columns = false;
  bool fragment_sums = false;  // gq_sum is in the order of the column kernel's accumulators, else row by row
  int32_t sum_rows = 16;       // then its rows are padded to this, a sequence
  int32_t sum_columns = 0;     // and its columns to this; 0: not
  bool always_sums = false;    // the column kernel adds to gq_sum even where gQ is not wanted
  int32_t scalar_rows = 0;     // row scalars lie as hopper/mapped_args.h says, padded to this many rows; 0: row by row
  int32_t turns_of_tile = 1;   // of PassArgs::turn, where deterministic
  int32_t rows_power_shift = 0;
  int32_t columns_power_shift = 0;
};

// What the rows of the problem's tensors begin at multiples of, in bytes: 16, 4 or 2.
int32_t RowAlignment(const AttentionProblem& problem);

KernelSet SelectKernels(const Computation& computation, const DeviceTraits& device);

}  // namespace flashbob::cuda

#endif  // FLASHBOB_KERNELS_CUDA_KERNEL_SET_H_
