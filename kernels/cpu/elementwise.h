// The elementwise work on tiles of the score matrix, vectorised, chosen once for the CPU that runs it.
//
// One source, elementwise_kernels.h, is compiled for x86-64-v3 and x86-64-v4. So that no code above v3 can leak into
// functions that other files share, that source and this header hold plain data and pointers only.
//
// Tiles are row-major: rows are queries, columns are keys. They start at 64-byte boundaries and so does every row; what
// lies between the last column and the end of a row may be overwritten.
#ifndef FLASHBOB_KERNELS_CPU_ELEMENTWISE_H_
#define FLASHBOB_KERNELS_CPU_ELEMENTWISE_H_

#include <cstdint>

namespace flashbob::cpu {

// Extents of a tile and, for each row, the columns [begin, end) that the mask lets it see. Null: all of them. Every
// kernel writes exact zeros where a row does not see.
struct TileMask {
  int64_t rows;
  int64_t columns;
  int64_t stride;  // elements from one row to the next
  const int32_t* begin;
  const int32_t* end;
  // Not 0: the one key that this row sees is all that it sees anywhere. Its P is 1 whatever its score, so X, Y and Z
  // are 0; the column pass takes D, c and r from the tile itself, so that they come out as 0 and not as the rounding
  // errors of sums that cancel. Null: no row is.
  const uint8_t* alone;
};

// The column pass on one tile for one set of tangents; the formulas are math.md's, "Order 2".
template <typename Real>
struct ColumnTile {
  TileMask mask;
  Real* p;        // in: S where `with_p`, else P. Out: P.
  Real* z;        // in: dP where `with_p`, else Z. Out: Z = P . (dP - D). Null where neither is needed.
  Real* g;        // in: G; null where no tangent of q or k is given. Out: X = P . (G - c).
  Real* w;        // in: H plus tdO V^T; null where neither tv nor tdo is given.
  Real* y;        // out: Y = X . (dP - D) + P . (W - r); null where not needed. May be `w`.
  const Real* l;  // L, +inf for rows that see nothing
  const Real* d;  // D; used with z
  const Real* c;  // used with g
  const Real* r;  // used with y
  bool with_p;    // first visit of this tile: S and dP are still to become P and Z
};

template <typename Real>
struct ElementwiseKernels {
  // s := exp(s - l).
  void (*softmax)(const TileMask& mask, Real* s, const Real* l);
  // One step of the running softmax: raises the maxima m to those of s, s := exp(s - m), l := l * rescale + rowsum(s)
  // with rescale = exp(old m - new m). True where any rescale is not 1.
  bool (*online_softmax)(const TileMask& mask, Real* s, Real* m, Real* l, Real* rescale);
  // g := p . g, sums := sums * rescale + rowsum(g).
  void (*weigh)(const TileMask& mask, const Real* p, Real* g, const Real* rescale, Real* sums);
  void (*column_tile)(const ColumnTile<Real>& tile);
  // Row i of a, contiguous, times factors[i].
  void (*scale_rows)(int64_t rows, int64_t columns, Real* a, const Real* factors);
  // out[i] += <row i of a, row i of b>.
  void (*add_row_dots)(int64_t rows, int64_t columns, const Real* a, int64_t a_stride, const Real* b, int64_t b_stride,
                       Real* out);
};

// Elements to which the rows of a tile are padded.
inline constexpr int64_t kTileRowAlignment = 16;

// The kernels for this CPU.
template <typename Real>
ElementwiseKernels<Real> SelectElementwiseKernels();

// Each level on its own, for SelectElementwiseKernels and tests. v4 needs a CPU of that level.
namespace v3 {
ElementwiseKernels<float> Float32Kernels();
ElementwiseKernels<double> Float64Kernels();
}  // namespace v3
namespace v4 {
ElementwiseKernels<float> Float32Kernels();
ElementwiseKernels<double> Float64Kernels();
}  // namespace v4
bool CpuHasV4();

}  // namespace flashbob::cpu

#endif  // FLASHBOB_KERNELS_CPU_ELEMENTWISE_H_
