// Conversion of rows between the dtypes of tensors and the type that is computed in.
#ifndef FLASHBOB_KERNELS_CPU_ROW_CONVERSION_H_
#define FLASHBOB_KERNELS_CPU_ROW_CONVERSION_H_

#include <cstdint>

#include "kernels/dtype.h"

namespace flashbob::cpu {

// The dtypes that are computed in `Real`: all but fp64 in float, fp64 in double.
// `source` and `target` are contiguous; halves round to nearest even, overflow to infinity, and keep NaN.
void Widen(DType dtype, const void* source, int64_t elements, float* target);
void Widen(DType dtype, const void* source, int64_t elements, double* target);
void Narrow(DType dtype, const float* source, int64_t elements, void* target);
void Narrow(DType dtype, const double* source, int64_t elements, void* target);

}  // namespace flashbob::cpu

#endif  // FLASHBOB_KERNELS_CPU_ROW_CONVERSION_H_
