// How far an output is from the reference, and how far it may be: math.md, "How error is measured", and the error rows
// of performance.md. Pure functions.
#ifndef FLASHBOB_KERNELS_CONFORMANCE_ERROR_H_
#define FLASHBOB_KERNELS_CONFORMANCE_ERROR_H_

#include <cstdint>
#include <vector>

#include "kernels/computation.h"
#include "kernels/reference/reference.h"

namespace flashbob::conformance {

// ||got - reference|| / max(||reference||, 0.01 ||abs||) over the elements where the reference is finite in `dtype`,
// the type of the output: elsewhere (-inf of an empty row's lse, overflow) `got` must be the same infinity or a NaN
// too, and nowhere else. Infinite where that does not hold; 0 where nothing is there or both are exactly 0.
double RelativeError(const std::vector<double>& got, const ReferenceTensor& reference, DType dtype);

// Whose bars an engine has to keep.
enum class BarKind : uint8_t { kCpu, kGpu };

// performance.md's error rows. TF32's holds on the GPU, where the problem permits it.
double ErrorBar(BarKind kind, DType dtype, bool allow_tf32);

// How many elements carry the norm: (sum of x^2)^2 / sum of x^4 over the finite ones. n where all are as large, 1 where
// one dwarfs the others; rounding errors average out over so many.
double EffectiveElements(const std::vector<double>& values);

// Whether the error row holds for an output as it stands. Always for fp32 and fp64. For bf16 and fp16 where the output
// has at least 4,096 elements, a sixteenth of them effective, o and lse are left out on a CPU, and the mask is full and
// N at least 1,024 on a GPU.
bool ErrorBarHolds(BarKind kind, const Computation& computation, TensorName output, const ReferenceTensor& reference);

// The bar of one output.
//   fp32, fp64: the row times max(1, max|S| / 4), because the exponential amplifies by |S|.
//   bf16, fp16: the row where it holds; elsewhere twice `rounded_error`, the error of the reference formula rounded
//   where an engine rounds, but no less than the row (it is 0 where a difference cancels in fp64 and not in fp32), and
//   for fewer than 64 effective elements no less than twice the unit roundoff (the reference may round them all
//   luckily).
double OutputBar(BarKind kind, const Computation& computation, TensorName output, const ReferenceTensor& reference,
                 double max_abs_score, double rounded_error);

}  // namespace flashbob::conformance

#endif  // FLASHBOB_KERNELS_CONFORMANCE_ERROR_H_
