// The bodies of ElementwiseKernels for vectors of FLASHBOB_VECTOR_BYTES bytes. Included by elementwise_v3.cc and
// elementwise_v4.cc and by nothing else; all of it has internal linkage.
//
// Vectors are the compilers' own vector types: plain operators, no intrinsics, any width. A row is walked one vector at
// a time; a vector that the mask cuts takes the branch with a select.
#ifndef FLASHBOB_KERNELS_CPU_ELEMENTWISE_KERNELS_H_
#define FLASHBOB_KERNELS_CPU_ELEMENTWISE_KERNELS_H_

#include <cstdint>

#include "kernels/cpu/elementwise.h"

namespace flashbob::cpu {
namespace {

template <typename Real>
struct Vector;

template <>
struct Vector<float> {
  static constexpr int kLanes = FLASHBOB_VECTOR_BYTES / 4;
  typedef float Type __attribute__((vector_size(FLASHBOB_VECTOR_BYTES), may_alias));
  typedef float Unaligned __attribute__((vector_size(FLASHBOB_VECTOR_BYTES), may_alias, aligned(4)));
  typedef int32_t Ints __attribute__((vector_size(FLASHBOB_VECTOR_BYTES)));
  typedef uint32_t Bits __attribute__((vector_size(FLASHBOB_VECTOR_BYTES)));
  using Int = int32_t;
};

template <>
struct Vector<double> {
  static constexpr int kLanes = FLASHBOB_VECTOR_BYTES / 8;
  typedef double Type __attribute__((vector_size(FLASHBOB_VECTOR_BYTES), may_alias));
  typedef double Unaligned __attribute__((vector_size(FLASHBOB_VECTOR_BYTES), may_alias, aligned(8)));
  typedef int64_t Ints __attribute__((vector_size(FLASHBOB_VECTOR_BYTES)));
  typedef uint64_t Bits __attribute__((vector_size(FLASHBOB_VECTOR_BYTES)));
  using Int = int64_t;
};

template <typename Real>
using Vec = typename Vector<Real>::Type;
template <typename Real>
using Ints = typename Vector<Real>::Ints;

constexpr float kInfinity = __builtin_inff();

template <typename Real>
inline Vec<Real>& At(Real* p) {
  return *reinterpret_cast<Vec<Real>*>(p);
}
template <typename Real>
inline const Vec<Real>& At(const Real* p) {
  return *reinterpret_cast<const Vec<Real>*>(p);
}

template <typename Real>
inline Vec<Real> Broadcast(Real x) {
  return Vec<Real>{} + x;
}

// e^x, both types: x = n ln 2 + r with |r| <= ln(2) / 2, e^r = 1 + r + r^2 q(r), q minimax in the relative error (3e-9
// and 4e-18). Zero below the smallest normal result, +inf within 0.4 of the largest, NaN stays NaN.
struct ExpFloat {
  using Real = float;
  static constexpr float kLog2E = 1.44269504f;
  static constexpr float kLn2High = 0.693359375f;
  static constexpr float kLn2Low = -2.12194440e-4f;
  static constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  static constexpr int kMantissaBits = 23;
  static constexpr uint32_t kOne = 0x3F800000;
  static constexpr float kLowest = -87.33654f;  // 126 ln 2
  static constexpr float kHighest = 88.37626f;  // 127.5 ln 2
  static constexpr float kQ[] = {0.4999999345f, 0.1666652063f, 0.04166838805f, 0.00836871688f, 0.001381459865f};
};
struct ExpDouble {
  using Real = double;
  static constexpr double kLog2E = 1.44269504088896340736;
  static constexpr double kLn2High = 0.69314718036912381649;
  static constexpr double kLn2Low = 1.9082149292705878161e-10;
  static constexpr double kRound = 6755399441055744.0;  // 1.5 * 2^52
  static constexpr int kMantissaBits = 52;
  static constexpr uint64_t kOne = 0x3FF0000000000000;
  static constexpr double kLowest = -708.39641853226410622;
  static constexpr double kHighest = 709.43613930310391;
  static constexpr double kQ[] = {0.500000000000001063,     0.166666666666664125,   0.0416666666665301585,
                                  0.00833333333349446166,   0.00138888889436301342, 0.000198412695065787239,
                                  0.0000248014930988873915, 2.7557586373785181e-6,  2.76302483853230206e-7,
                                  2.50000616255312796e-8};
};
template <typename Real>
struct ExpConstants;
template <>
struct ExpConstants<float> : ExpFloat {};
template <>
struct ExpConstants<double> : ExpDouble {};

template <typename Real>
inline Vec<Real> Exp(Vec<Real> x) {
  using E = ExpConstants<Real>;
  const Vec<Real> shifted = x * E::kLog2E + E::kRound;
  const Vec<Real> n = shifted - E::kRound;
  const Vec<Real> r = (x - n * E::kLn2High) - n * E::kLn2Low;
  constexpr int kDegree = sizeof(E::kQ) / sizeof(E::kQ[0]);
  Vec<Real> q = Broadcast<Real>(E::kQ[kDegree - 1]);
  for (int i = kDegree - 2; i >= 0; --i) q = q * r + E::kQ[i];
  const Vec<Real> fraction = (q * r) * r + r + Real{1};
  // The shift drops kRound's own bits and leaves n in the exponent's place. Multiplying keeps a NaN a NaN.
  using Bits = typename Vector<Real>::Bits;
  const Bits exponent = (reinterpret_cast<Bits>(shifted) << E::kMantissaBits) + E::kOne;
  Vec<Real> y = fraction * reinterpret_cast<Vec<Real>>(exponent);
  y = x < E::kLowest ? Vec<Real>{} : y;
  return x > E::kHighest ? Broadcast<Real>(kInfinity) : y;
}

template <typename Real>
inline Vec<Real> Max(Vec<Real> a, Vec<Real> b) {
  return a > b ? a : b;
}

template <typename Real>
inline Real Sum(Vec<Real> v) {
  alignas(64) Real lanes[Vector<Real>::kLanes];
  At(lanes) = v;
  for (int width = Vector<Real>::kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

template <typename Real>
inline Real Largest(Vec<Real> v) {
  alignas(64) Real lanes[Vector<Real>::kLanes];
  At(lanes) = v;
  for (int width = Vector<Real>::kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] = lanes[i] > lanes[i + width] ? lanes[i] : lanes[i + width];
  }
  return lanes[0];
}

// The visible columns of one row.
struct Interval {
  int64_t begin;
  int64_t end;
};

inline Interval VisibleOf(const TileMask& mask, int64_t row) {
  if (mask.begin == nullptr) return {0, mask.columns};
  return {mask.begin[row], mask.end[row]};
}

// Lanes of the vector at column j that are visible: all bits set.
template <typename Real>
inline Ints<Real> VisibleLanes(Interval visible, int64_t j) {
  using Int = typename Vector<Real>::Int;
  Ints<Real> lane;
  for (int i = 0; i < Vector<Real>::kLanes; ++i) lane[i] = static_cast<Int>(i);
  return (lane >= static_cast<Int>(visible.begin - j)) & (lane < static_cast<Int>(visible.end - j));
}

struct AllVisible {
  template <typename V>
  V operator()(V value, V) const {
    return value;
  }
};

template <typename Real>
struct SomeVisible {
  Ints<Real> lanes;
  Vec<Real> operator()(Vec<Real> value, Vec<Real> otherwise) const { return lanes ? value : otherwise; }
};

// Calls body(j, select) for each vector of a row; select(a, b) is a where visible and b elsewhere.
template <typename Real, typename Body>
inline void ForEachVector(int64_t columns, Interval visible, const Body& body) {
  constexpr int kLanes = Vector<Real>::kLanes;
  for (int64_t j = 0; j < columns; j += kLanes) {
    if (j >= visible.begin && j + kLanes <= visible.end) {
      body(j, AllVisible{});
    } else {
      body(j, SomeVisible<Real>{VisibleLanes<Real>(visible, j)});
    }
  }
}

template <typename Real>
void Softmax(const TileMask& mask, Real* s, const Real* l) {
  for (int64_t i = 0; i < mask.rows; ++i, s += mask.stride) {
    const Real shift = l[i];
    ForEachVector<Real>(mask.columns, VisibleOf(mask, i),
                        [&](int64_t j, auto select) { At(s + j) = select(Exp<Real>(At(s + j) - shift), Vec<Real>{}); });
  }
}

template <typename Real>
bool OnlineSoftmax(const TileMask& mask, Real* s, Real* m, Real* l, Real* rescale) {
  bool changed = false;
  const Vec<Real> lowest = Broadcast<Real>(-kInfinity);
  for (int64_t i = 0; i < mask.rows; ++i, s += mask.stride) {
    const Interval visible = VisibleOf(mask, i);
    Vec<Real> maxima = Broadcast<Real>(m[i]);
    ForEachVector<Real>(mask.columns, visible,
                        [&](int64_t j, auto select) { maxima = Max<Real>(select(At(s + j), lowest), maxima); });
    const Real maximum = Largest<Real>(maxima);
    // A row that has seen nothing yet: any finite shift gives P = 0 and leaves the sums at 0.
    const Real shift = maximum == -kInfinity ? Real{0} : maximum;
    Vec<Real> sums = {};
    ForEachVector<Real>(mask.columns, visible, [&](int64_t j, auto select) {
      const Vec<Real> p = select(Exp<Real>(At(s + j) - shift), Vec<Real>{});
      At(s + j) = p;
      sums += p;
    });
    rescale[i] = m[i] == maximum ? Real{1} : Exp<Real>(Broadcast<Real>(m[i] - shift))[0];
    changed |= rescale[i] != Real{1};
    l[i] = l[i] * rescale[i] + Sum<Real>(sums);
    m[i] = maximum;
  }
  return changed;
}

template <typename Real>
void Weigh(const TileMask& mask, const Real* p, Real* g, const Real* rescale, Real* sums) {
  for (int64_t i = 0; i < mask.rows; ++i, p += mask.stride, g += mask.stride) {
    Vec<Real> row_sums = {};
    ForEachVector<Real>(mask.columns, VisibleOf(mask, i), [&](int64_t j, auto select) {
      const Vec<Real> weighed = select(At(p + j) * At(g + j), Vec<Real>{});
      At(g + j) = weighed;
      row_sums += weighed;
    });
    sums[i] = sums[i] * rescale[i] + Sum<Real>(row_sums);
  }
}

// Which of its pointers a ColumnTile has, as constants.
template <bool with_p, bool with_z, bool with_g, bool with_w, bool with_y>
struct ColumnTileBody {
  template <typename Real>
  static void Run(const ColumnTile<Real>& tile) {
    const TileMask& mask = tile.mask;
    for (int64_t i = 0; i < mask.rows; ++i) {
      const Interval visible = VisibleOf(mask, i);
      const int64_t row = i * mask.stride;
      const Real l = with_p ? tile.l[i] : Real{0};
      Real d = with_p && with_z ? tile.d[i] : Real{0};
      Real c = with_g ? tile.c[i] : Real{0};
      Real r = with_y ? tile.r[i] : Real{0};
      if (mask.alone != nullptr && mask.alone[i] != 0) {
        const int64_t only = row + visible.begin;
        if constexpr (with_p && with_z) d = tile.z[only];
        if constexpr (with_g) c = tile.g[only];
        if constexpr (with_y) r = with_w ? tile.w[only] : Real{0};
      }
      ForEachVector<Real>(mask.columns, visible, [&](int64_t j, auto select) {
        const int64_t at = row + j;
        const Vec<Real> zero = {};
        Vec<Real> p = At(tile.p + at);
        if constexpr (with_p) {
          p = select(Exp<Real>(p - l), zero);
          At(tile.p + at) = p;
        }
        Vec<Real> z = zero;
        if constexpr (with_z) {
          z = At(tile.z + at);
          if constexpr (with_p) {
            z = select(p * (z - d), zero);
            At(tile.z + at) = z;
          }
        }
        Vec<Real> centred = zero;
        if constexpr (with_g) {
          centred = At(tile.g + at) - c;
          At(tile.g + at) = select(p * centred, zero);
        }
        if constexpr (with_y) {
          Vec<Real> y = p * (-r);
          if constexpr (with_w) y = p * (At(tile.w + at) - r);
          if constexpr (with_g && with_z) y += centred * z;
          At(tile.y + at) = select(y, zero);
        }
      });
    }
  }
};

template <bool... chosen>
struct ColumnTileDispatch {
  template <typename Real, typename... Rest>
  static void Run(const ColumnTile<Real>& tile, bool next, Rest... rest) {
    if (next) {
      ColumnTileDispatch<chosen..., true>::Run(tile, rest...);
    } else {
      ColumnTileDispatch<chosen..., false>::Run(tile, rest...);
    }
  }
  template <typename Real>
  static void Run(const ColumnTile<Real>& tile) {
    ColumnTileBody<chosen...>::Run(tile);
  }
};

template <typename Real>
void RunColumnTile(const ColumnTile<Real>& tile) {
  ColumnTileDispatch<>::Run(tile, tile.with_p, tile.z != nullptr, tile.g != nullptr, tile.w != nullptr,
                            tile.y != nullptr);
}

template <typename Real>
void ScaleRows(int64_t rows, int64_t columns, Real* a, const Real* factors) {
  for (int64_t i = 0; i < rows; ++i, a += columns) {
    for (int64_t j = 0; j < columns; ++j) a[j] *= factors[i];
  }
}

template <typename Real>
void AddRowDots(int64_t rows, int64_t columns, const Real* a, int64_t a_stride, const Real* b, int64_t b_stride,
                Real* out) {
  constexpr int kLanes = Vector<Real>::kLanes;
  using Unaligned = typename Vector<Real>::Unaligned;
  for (int64_t i = 0; i < rows; ++i, a += a_stride, b += b_stride) {
    Vec<Real> sums = {};
    int64_t j = 0;
    for (; j + kLanes <= columns; j += kLanes) {
      sums += *reinterpret_cast<const Unaligned*>(a + j) * *reinterpret_cast<const Unaligned*>(b + j);
    }
    Real sum = Sum<Real>(sums);
    for (; j < columns; ++j) sum += a[j] * b[j];
    out[i] += sum;
  }
}

template <typename Real>
ElementwiseKernels<Real> Kernels() {
  return {&Softmax<Real>,       &OnlineSoftmax<Real>, &Weigh<Real>,
          &RunColumnTile<Real>, &ScaleRows<Real>,     &AddRowDots<Real>};
}

}  // namespace
}  // namespace flashbob::cpu

#endif  // FLASHBOB_KERNELS_CPU_ELEMENTWISE_KERNELS_H_
