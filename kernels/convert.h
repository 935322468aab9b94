// Conversions between typed buffers and doubles: rounding to nearest, ties to even, from double in one step.
//
// NaN stays NaN (quiet, sign kept), values past the largest finite one become infinite, small ones denormal or zero
// with their sign. The code works on bits and needs no hardware support. Free functions, no state.
#ifndef FLASHBOB_KERNELS_CONVERT_H_
#define FLASHBOB_KERNELS_CONVERT_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/dtype.h"

namespace flashbob {

// Bit patterns of one bf16 or fp16 number. A float is a double, so these serve both.
uint16_t ToBFloat16Bits(double value);
uint16_t ToFloat16Bits(double value);
double FromBFloat16Bits(uint16_t bits);
double FromFloat16Bits(uint16_t bits);

// The number of that dtype nearest to `value`.
double RoundTo(DType dtype, double value);

// `elements` numbers of `dtype` at `data`, of any alignment, as doubles: exact.
std::vector<double> ToDoubles(DType dtype, const void* data, size_t elements);

// Writes `values` as numbers of `dtype` to `data`, values.size() * SizeOf(dtype) bytes of any alignment.
void FromDoubles(DType dtype, const std::vector<double>& values, void* data);

}  // namespace flashbob

#endif  // FLASHBOB_KERNELS_CONVERT_H_
