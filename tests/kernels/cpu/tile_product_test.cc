// Tile products against the definition, in every orientation and with the odd extents that attention brings.
#include "kernels/cpu/tile_product.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <thread>
#include <vector>

#include "tests/seed.h"

extern "C" int omp_get_max_threads(void);

namespace flashbob::cpu {
namespace {

template <typename Real>
class TileProductTest : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(TileProductTest, Types);

TYPED_TEST(TileProductTest, IsTheDefinitionInEveryOrientation) {
  using Real = TypeParam;
  std::mt19937_64 generator(testing_seed::Seed());
  std::normal_distribution<double> normal;
  const int64_t extents[] = {1, 2, 3, 5, 16, 17, 63, 64, 65, 128, 200};
  std::uniform_int_distribution<size_t> draw(0, std::size(extents) - 1);
  const SerialScope serial;
  for (int round = 0; round < 120; ++round) {
    const int64_t rows = extents[draw(generator)];
    const int64_t columns = extents[draw(generator)];
    const int64_t depth = extents[draw(generator)];
    const bool a_transposed = round % 2 == 1;
    const bool b_transposed = round / 2 % 2 == 1;
    const bool accumulate = round / 4 % 2 == 1;
    const auto alpha = static_cast<Real>(normal(generator));
    // Rows lie further apart than they are long.
    const int64_t a_stride = (a_transposed ? rows : depth) + 3;
    const int64_t b_stride = (b_transposed ? depth : columns) + 1;
    const int64_t c_stride = columns + 2;
    std::vector<Real> a(static_cast<size_t>((a_transposed ? depth : rows) * a_stride));
    std::vector<Real> b(static_cast<size_t>((b_transposed ? columns : depth) * b_stride));
    std::vector<Real> c(static_cast<size_t>(rows * c_stride));
    for (auto* matrix : {&a, &b, &c}) {
      for (Real& x : *matrix) x = static_cast<Real>(normal(generator));
    }
    std::vector<Real> expected = c;
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        double sum = 0;
        for (int64_t x = 0; x < depth; ++x) {
          sum += static_cast<double>(a_transposed ? a[x * a_stride + i] : a[i * a_stride + x]) *
                 static_cast<double>(b_transposed ? b[j * b_stride + x] : b[x * b_stride + j]);
        }
        Real& element = expected[i * c_stride + j];
        element = static_cast<Real>((accumulate ? static_cast<double>(element) : 0) + static_cast<double>(alpha) * sum);
        // What is overwritten must not be read.
        if (!accumulate) c[i * c_stride + j] = std::numeric_limits<Real>::quiet_NaN();
      }
    }
    TileProducts products;
    products.Multiply(rows, columns, depth, alpha, {{a.data(), a_stride}, a_transposed},
                      {{b.data(), b_stride}, b_transposed}, accumulate ? Into::kAccumulate : Into::kOverwrite,
                      {c.data(), c_stride});
    ASSERT_TRUE(products.status().ok()) << products.status();
    const double tolerance = 100 * std::sqrt(static_cast<double>(depth)) * std::numeric_limits<Real>::epsilon();
    for (size_t i = 0; i < c.size(); ++i) {
      ASSERT_NEAR(static_cast<double>(c[i]), static_cast<double>(expected[i]), tolerance)
          << rows << " x " << columns << " x " << depth << (a_transposed ? " T" : " N") << (b_transposed ? "T" : "N");
    }
  }
}

TEST(SerialScopeTest, KeepsOpenMpToItsThreadAndPutsItBack) {
  std::thread([] {
    const int before = omp_get_max_threads();
    {
      const SerialScope serial;
      EXPECT_EQ(omp_get_max_threads(), 1);
    }
    EXPECT_EQ(omp_get_max_threads(), before);
  }).join();
}

}  // namespace
}  // namespace flashbob::cpu
