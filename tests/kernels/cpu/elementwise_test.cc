// The elementwise kernels of every level that this CPU has, against the same formulas in double, element by element.
#include "kernels/cpu/elementwise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tests/seed.h"

namespace flashbob::cpu {
namespace {

constexpr int64_t kRows = 5;
constexpr int64_t kColumns = 37;
constexpr int64_t kStride = 48;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

template <typename Real>
struct alignas(64) Tile {
  Real data[kRows * kStride];
};

template <typename Real>
std::vector<ElementwiseKernels<Real>> Levels();
template <>
std::vector<ElementwiseKernels<float>> Levels() {
  std::vector<ElementwiseKernels<float>> levels = {v3::Float32Kernels()};
  if (CpuHasV4()) levels.push_back(v4::Float32Kernels());
  return levels;
}
template <>
std::vector<ElementwiseKernels<double>> Levels() {
  std::vector<ElementwiseKernels<double>> levels = {v3::Float64Kernels()};
  if (CpuHasV4()) levels.push_back(v4::Float64Kernels());
  return levels;
}

template <typename Real>
class ElementwiseTest : public testing::Test {
 protected:
  Tile<Real> Random(double deviation = 1) {
    std::normal_distribution<double> normal(0, deviation);
    Tile<Real> tile;
    for (Real& x : tile.data) x = static_cast<Real>(normal(generator_));
    return tile;
  }

  // Intervals of all kinds: empty, one column, cutting vectors, all.
  static TileMask Mask() {
    static const int32_t begin[kRows] = {0, 5, 16, 36, 9};
    static const int32_t end[kRows] = {kColumns, 5, 33, 37, 10};
    return {kRows, kColumns, kStride, begin, end, nullptr};
  }
  static bool Visible(const TileMask& mask, int64_t i, int64_t j) {
    return mask.begin == nullptr || (mask.begin[i] <= j && j < mask.end[i]);
  }
  static constexpr Real kTolerance = 8 * std::numeric_limits<Real>::epsilon();

  std::mt19937_64 generator_{testing_seed::Seed()};
};

using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(ElementwiseTest, Types);

TYPED_TEST(ElementwiseTest, ExponentialIsWithinTwoUlp) {
  using Real = TypeParam;
  constexpr int64_t kCount = 16384;
  const double lowest = std::log(static_cast<double>(std::numeric_limits<Real>::min()));
  for (const auto& kernels : Levels<Real>()) {
    std::vector<Real> memory(kCount + 16);
    Real* x = memory.data();
    while (reinterpret_cast<uintptr_t>(x) % 64 != 0) ++x;
    std::uniform_real_distribution<double> uniform(lowest + 1e-3, 2);
    std::vector<Real> arguments;
    for (int64_t i = 0; i < kCount; ++i) arguments.push_back(static_cast<Real>(uniform(this->generator_)));
    std::copy(arguments.begin(), arguments.end(), x);
    const Real shift = 0;
    kernels.softmax({1, kCount, kCount, nullptr, nullptr, nullptr}, x, &shift);
    for (int64_t i = 0; i < kCount; ++i) {
      const long double exact = std::exp(static_cast<long double>(arguments[i]));
      const auto nearest = static_cast<Real>(exact);
      const Real ulp = std::nextafter(nearest, std::numeric_limits<Real>::infinity()) - nearest;
      ASSERT_LE(std::abs(static_cast<long double>(x[i]) - exact), 2 * static_cast<long double>(ulp)) << arguments[i];
    }
  }
}

TYPED_TEST(ElementwiseTest, ExponentialOfTheExtremes) {
  using Real = TypeParam;
  for (const auto& kernels : Levels<Real>()) {
    Tile<Real> s = {};
    const Real arguments[] = {static_cast<Real>(-kInfinity),
                              std::numeric_limits<Real>::lowest(),
                              -800,
                              std::numeric_limits<Real>::quiet_NaN(),
                              static_cast<Real>(kInfinity),
                              800,
                              0};
    std::copy(std::begin(arguments), std::end(arguments), s.data);
    const Real shift = 0;
    kernels.softmax({1, kColumns, kStride, nullptr, nullptr, nullptr}, s.data, &shift);
    EXPECT_EQ(s.data[0], 0);
    EXPECT_EQ(s.data[1], 0);
    EXPECT_EQ(s.data[2], 0);
    EXPECT_TRUE(std::isnan(s.data[3]));
    EXPECT_EQ(s.data[4], kInfinity);
    EXPECT_EQ(s.data[5], kInfinity);
    EXPECT_EQ(s.data[6], 1);
  }
}

TYPED_TEST(ElementwiseTest, SoftmaxOfARowThatSeesNothingIsZero) {
  using Real = TypeParam;
  for (const auto& kernels : Levels<Real>()) {
    Tile<Real> s = this->Random(30);
    const std::vector<Real> l(kRows, static_cast<Real>(kInfinity));
    kernels.softmax({kRows, kColumns, kStride, nullptr, nullptr, nullptr}, s.data, l.data());
    for (int64_t i = 0; i < kRows; ++i) {
      for (int64_t j = 0; j < kColumns; ++j) EXPECT_EQ(s.data[i * kStride + j], 0);
    }
  }
}

TYPED_TEST(ElementwiseTest, MaskedElementsBecomeZeroWhateverTheyHold) {
  using Real = TypeParam;
  for (const auto& kernels : Levels<Real>()) {
    const TileMask mask = this->Mask();
    Tile<Real> p = this->Random();
    Tile<Real> z = this->Random();
    Tile<Real> g = this->Random();
    Tile<Real> w = this->Random();
    for (int64_t i = 0; i < kRows; ++i) {
      for (int64_t j = 0; j < kStride; ++j) {
        if (this->Visible(mask, i, j) && j < kColumns) continue;
        p.data[i * kStride + j] = std::numeric_limits<Real>::quiet_NaN();
        z.data[i * kStride + j] = g.data[i * kStride + j] = w.data[i * kStride + j] = static_cast<Real>(kInfinity);
      }
    }
    const std::vector<Real> statistic(kRows, Real{1});
    ColumnTile<Real> tile = {mask,   p.data,           z.data,           g.data,           w.data,
                             w.data, statistic.data(), statistic.data(), statistic.data(), statistic.data(),
                             true};
    kernels.column_tile(tile);
    for (int64_t i = 0; i < kRows; ++i) {
      for (int64_t j = 0; j < kColumns; ++j) {
        for (const Tile<Real>* each : {&p, &z, &g, &w}) {
          const Real value = each->data[i * kStride + j];
          if (this->Visible(mask, i, j)) {
            EXPECT_TRUE(std::isfinite(value)) << i << " " << j;
          } else {
            EXPECT_EQ(value, 0) << i << " " << j;
          }
        }
      }
    }
  }
}

TYPED_TEST(ElementwiseTest, OnlineSoftmaxOverTilesIsTheSoftmaxOverAllOfThem) {
  using Real = TypeParam;
  constexpr int kTiles = 4;
  for (const auto& kernels : Levels<Real>()) {
    std::vector<Real> m(kRows, static_cast<Real>(-kInfinity));
    std::vector<Real> l(kRows, Real{0});
    std::vector<Real> rescale(kRows);
    std::vector<double> sums(kRows, 0);     // of exp(s)
    std::vector<double> weighed(kRows, 0);  // of exp(s) g
    std::vector<Real> running(kRows, Real{0});
    for (int t = 0; t < kTiles; ++t) {
      // The first tile shows nothing to rows 1 and 2, which have to start later.
      const int32_t begin[kRows] = {0, 3, t == 0 ? 8 : 0, 36, 9};
      const int32_t end[kRows] = {kColumns, t == 0 ? 3 : 20, t == 0 ? 8 : 1, 37, 21};
      const TileMask mask = {kRows, kColumns, kStride, begin, end, nullptr};
      Tile<Real> s = this->Random(4);
      Tile<Real> g = this->Random();
      for (int64_t i = 0; i < kRows; ++i) {
        for (int64_t j = begin[i]; j < end[i]; ++j) {
          const double p = std::exp(static_cast<double>(s.data[i * kStride + j]));
          sums[i] += p;
          weighed[i] += p * static_cast<double>(g.data[i * kStride + j]);
        }
      }
      const std::vector<Real> before = m;
      const bool changed = kernels.online_softmax(mask, s.data, m.data(), l.data(), rescale.data());
      bool any = false;
      for (int64_t i = 0; i < kRows; ++i) any |= rescale[i] != 1;
      EXPECT_EQ(changed, any);
      kernels.weigh(mask, s.data, g.data, rescale.data(), running.data());
    }
    for (int64_t i = 0; i < kRows; ++i) {
      const double scale = std::exp(static_cast<double>(m[i]));
      EXPECT_NEAR(static_cast<double>(l[i]) * scale / sums[i], 1, 20 * this->kTolerance) << i;
      EXPECT_NEAR(static_cast<double>(running[i]) * scale / sums[i], weighed[i] / sums[i], 50 * this->kTolerance) << i;
    }
  }
}

TYPED_TEST(ElementwiseTest, ScoresThatAreAllMinusInfinityCountAsUnseen) {
  using Real = TypeParam;
  for (const auto& kernels : Levels<Real>()) {
    std::vector<Real> m(kRows, static_cast<Real>(-kInfinity));
    std::vector<Real> l(kRows, Real{0});
    std::vector<Real> rescale(kRows);
    Tile<Real> s;
    std::fill(std::begin(s.data), std::end(s.data), static_cast<Real>(-kInfinity));
    EXPECT_FALSE(kernels.online_softmax({kRows, kColumns, kStride, nullptr, nullptr, nullptr}, s.data, m.data(),
                                        l.data(), rescale.data()));
    for (int64_t i = 0; i < kRows; ++i) {
      EXPECT_EQ(m[i], -kInfinity);
      EXPECT_EQ(l[i], 0);
      for (int64_t j = 0; j < kColumns; ++j) EXPECT_EQ(s.data[i * kStride + j], 0);
    }
  }
}

TYPED_TEST(ElementwiseTest, ColumnTileIsTheFormulaForEverySetOfOperands) {
  using Real = TypeParam;
  for (const auto& kernels : Levels<Real>()) {
    for (int chosen = 0; chosen < 32; ++chosen) {
      const bool with_p = (chosen & 1) != 0;
      const bool with_z = (chosen & 2) != 0;
      const bool with_g = (chosen & 4) != 0;
      const bool with_w = (chosen & 8) != 0;
      const bool with_y = (chosen & 16) != 0;
      const TileMask mask =
          chosen % 3 == 0 ? TileMask{kRows, kColumns, kStride, nullptr, nullptr, nullptr} : this->Mask();
      const Tile<Real> p = this->Random();
      const Tile<Real> z = this->Random();
      const Tile<Real> g = this->Random();
      const Tile<Real> w = this->Random();
      Tile<Real> p_out = p;
      Tile<Real> z_out = z;
      Tile<Real> g_out = g;
      Tile<Real> w_out = w;
      const Tile<Real> statistics = this->Random();
      const Real* l = statistics.data;
      const Real* d = l + kStride;
      const Real* c = d + kStride;
      const Real* r = c + kStride;
      kernels.column_tile({mask, p_out.data, with_z ? z_out.data : nullptr, with_g ? g_out.data : nullptr,
                           with_w ? w_out.data : nullptr, with_y ? w_out.data : nullptr, l, d, c, r, with_p});
      for (int64_t i = 0; i < kRows; ++i) {
        for (int64_t j = 0; j < kColumns; ++j) {
          if (!this->Visible(mask, i, j)) continue;
          const int64_t at = i * kStride + j;
          const auto value = [&](const Tile<Real>& tile) { return static_cast<double>(tile.data[at]); };
          const double expected_p = with_p ? std::exp(value(p) - static_cast<double>(l[i])) : value(p);
          const double expected_z = with_p ? expected_p * (value(z) - static_cast<double>(d[i])) : value(z);
          const double centred = value(g) - static_cast<double>(c[i]);
          double expected_y = expected_p * ((with_w ? value(w) : 0) - static_cast<double>(r[i]));
          if (with_g && with_z) expected_y += centred * expected_z;
          const double tolerance = this->kTolerance * (1 + std::abs(expected_p)) * 20;
          EXPECT_NEAR(value(p_out), expected_p, tolerance) << chosen;
          EXPECT_NEAR(value(z_out), with_z ? expected_z : value(z), tolerance) << chosen;
          EXPECT_NEAR(value(g_out), with_g ? expected_p * centred : value(g), tolerance) << chosen;
          EXPECT_NEAR(value(w_out), with_y ? expected_y : value(w), 10 * tolerance) << chosen;
        }
      }
    }
  }
}

TYPED_TEST(ElementwiseTest, RowsThatSeeOneKeyGiveExactZeros) {
  using Real = TypeParam;
  for (const auto& kernels : Levels<Real>()) {
    const uint8_t alone[kRows] = {0, 0, 0, 1, 1};
    TileMask mask = this->Mask();
    mask.alone = alone;
    Tile<Real> p = this->Random();
    Tile<Real> z = this->Random();
    Tile<Real> g = this->Random();
    Tile<Real> w = this->Random();
    const std::vector<Real> statistic(kRows, static_cast<Real>(0.1));
    kernels.column_tile({mask, p.data, z.data, g.data, w.data, w.data, statistic.data(), statistic.data(),
                         statistic.data(), statistic.data(), true});
    for (int64_t i = 0; i < kRows; ++i) {
      for (int64_t j = mask.begin[i]; j < mask.end[i]; ++j) {
        EXPECT_GT(p.data[i * kStride + j], 0);
        EXPECT_EQ(z.data[i * kStride + j] == 0, alone[i] != 0);
        EXPECT_EQ(g.data[i * kStride + j] == 0, alone[i] != 0);
        EXPECT_EQ(w.data[i * kStride + j] == 0, alone[i] != 0);
      }
    }
  }
}

TYPED_TEST(ElementwiseTest, RowDotsAndRowScalesTakeAnyWidth) {
  using Real = TypeParam;
  for (const auto& kernels : Levels<Real>()) {
    for (int64_t columns : {1, 3, 16, 17, 31, 37}) {
      const Tile<Real> a = this->Random();
      const Tile<Real> b = this->Random();
      std::vector<Real> out(kRows, Real{2});
      kernels.add_row_dots(kRows, columns, a.data, 41, b.data, columns, out.data());
      Tile<Real> scaled = b;
      kernels.scale_rows(kRows, columns, scaled.data, a.data);
      for (int64_t i = 0; i < kRows; ++i) {
        double dot = 2;
        for (int64_t j = 0; j < columns; ++j) {
          dot += static_cast<double>(a.data[i * 41 + j]) * static_cast<double>(b.data[i * columns + j]);
          EXPECT_EQ(scaled.data[i * columns + j], b.data[i * columns + j] * a.data[i]);
        }
        EXPECT_NEAR(static_cast<double>(out[i]), dot, 10 * this->kTolerance * 10);
      }
    }
  }
}

}  // namespace
}  // namespace flashbob::cpu
