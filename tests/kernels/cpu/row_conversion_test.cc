// The vectorised conversions against those of kernels/convert.h, which work on bits.
#include "kernels/cpu/row_conversion.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/convert.h"
#include "tests/seed.h"

namespace flashbob::cpu {
namespace {

TEST(RowConversionTest, WideningIsExactForEveryHalf) {
  std::vector<uint16_t> halves(65536);
  std::iota(halves.begin(), halves.end(), uint16_t{0});
  for (DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    const std::vector<double> expected = ToDoubles(dtype, halves.data(), halves.size());
    // An odd count and an odd start: no vector but the tail's fits.
    for (size_t skip : {0, 3}) {
      std::vector<float> widened(halves.size() - skip);
      Widen(dtype, halves.data() + skip, static_cast<int64_t>(widened.size()), widened.data());
      for (size_t i = 0; i < widened.size(); ++i) {
        if (std::isnan(expected[i + skip])) {
          ASSERT_TRUE(std::isnan(widened[i]));
        } else {
          ASSERT_EQ(static_cast<double>(widened[i]), expected[i + skip]);
        }
      }
    }
  }
}

TEST(RowConversionTest, NarrowingRoundsToNearestEven) {
  std::mt19937_64 generator(testing_seed::Seed());
  std::vector<float> values;
  // Any bits at all; ties, which random bits do not hit; and what rounds up into the next exponent or to infinity.
  for (int i = 0; i < 200000; ++i) values.push_back(std::bit_cast<float>(static_cast<uint32_t>(generator())));
  for (uint32_t upper = 0; upper < 65536; ++upper) {
    for (uint32_t lower : {0x0000u, 0x7FFFu, 0x8000u, 0x8001u, 0x1000u, 0xF000u}) {
      values.push_back(std::bit_cast<float>(upper << 16 | lower));
    }
  }
  for (DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    std::vector<uint16_t> narrowed(values.size());
    Narrow(dtype, values.data(), static_cast<int64_t>(values.size()), narrowed.data());
    for (size_t i = 0; i < values.size(); ++i) {
      const auto value = static_cast<double>(values[i]);
      const uint16_t expected = dtype == DType::kBFloat16 ? ToBFloat16Bits(value) : ToFloat16Bits(value);
      if (std::isnan(value)) {
        ASSERT_TRUE(std::isnan(ToDoubles(dtype, &narrowed[i], 1)[0])) << value;
      } else {
        ASSERT_EQ(narrowed[i], expected) << value;
      }
    }
  }
}

}  // namespace
}  // namespace flashbob::cpu
