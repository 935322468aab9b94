// Conversions of the 16-bit types, exhaustively: every pattern, and every midpoint between neighbours.
#include "kernels/convert.h"

#include <gtest/gtest.h>
#include <immintrin.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "tests/seed.h"

namespace flashbob {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Type {
  const char* name;
  uint16_t (*encode)(double);
  double (*decode)(uint16_t);
  float (*by_hardware)(uint16_t);  // what the pattern means, by other means
  uint16_t infinity;
};

std::ostream& operator<<(std::ostream& out, const Type& type) { return out << type.name; }

float BFloat16ByHardware(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }
float Float16ByHardware(uint16_t bits) { return _cvtsh_ss(bits); }

class ConvertTest : public testing::TestWithParam<Type> {};

TEST_P(ConvertTest, EveryPatternMeansWhatHardwareSays) {
  const Type& type = GetParam();
  for (uint32_t pattern = 0; pattern < 0x10000; ++pattern) {
    const auto bits = static_cast<uint16_t>(pattern);
    const double expected = static_cast<double>(type.by_hardware(bits));
    const double decoded = type.decode(bits);
    ASSERT_EQ(std::isnan(decoded), std::isnan(expected)) << pattern;
    if (std::isnan(expected)) continue;
    ASSERT_EQ(decoded, expected) << pattern;
    ASSERT_EQ(std::signbit(decoded), std::signbit(expected)) << pattern;
  }
}

TEST_P(ConvertTest, EveryNumberSurvivesTheRoundTrip) {
  const Type& type = GetParam();
  for (uint32_t pattern = 0; pattern < 0x10000; ++pattern) {
    const auto bits = static_cast<uint16_t>(pattern);
    const double decoded = type.decode(bits);
    if (std::isnan(decoded)) {
      ASSERT_TRUE(std::isnan(type.decode(type.encode(decoded)))) << pattern;
      ASSERT_EQ(type.encode(decoded) >> 15, bits >> 15) << "sign of NaN " << pattern;
    } else {
      ASSERT_EQ(type.encode(decoded), bits) << pattern;
    }
  }
}

TEST_P(ConvertTest, EveryMidpointGoesToEvenAndItsNeighboursToTheNearest) {
  const Type& type = GetParam();
  for (uint16_t bits = 0; bits + 1 < type.infinity; ++bits) {
    const double low = type.decode(bits);
    const double high = type.decode(static_cast<uint16_t>(bits + 1));
    const double middle = low + (high - low) / 2;
    const auto even = static_cast<uint16_t>(bits + (bits & 1));
    for (double sign : {1.0, -1.0}) {
      const uint16_t sign_bit = sign < 0 ? 0x8000 : 0;
      ASSERT_EQ(type.encode(sign * middle), even | sign_bit) << bits;
      // One ulp of a double away: through fp32 these would be midpoints again.
      ASSERT_EQ(type.encode(sign * std::nextafter(middle, 0)), bits | sign_bit) << bits;
      ASSERT_EQ(type.encode(sign * std::nextafter(middle, kInfinity)), (bits + 1) | sign_bit) << bits;
    }
  }
}

TEST_P(ConvertTest, OverflowStartsHalfAStepPastTheLargest) {
  const Type& type = GetParam();
  const auto largest_bits = static_cast<uint16_t>(type.infinity - 1);
  const double largest = type.decode(largest_bits);
  const double half_step = (largest - type.decode(static_cast<uint16_t>(largest_bits - 1))) / 2;
  EXPECT_EQ(type.encode(std::nextafter(largest + half_step, 0)), largest_bits);
  EXPECT_EQ(type.encode(largest + half_step), type.infinity);
  for (double large : {largest + half_step, 1e300, std::numeric_limits<double>::max(), kInfinity}) {
    EXPECT_EQ(type.encode(large), type.infinity);
    EXPECT_EQ(type.encode(-large), type.infinity | 0x8000);
  }
}

TEST_P(ConvertTest, TinyNumbersBecomeZeroOfTheirSign) {
  const Type& type = GetParam();
  for (double tiny : {type.decode(1) / 2, 1e-300, std::numeric_limits<double>::denorm_min(), 0.0}) {
    EXPECT_EQ(type.encode(tiny), 0);
    EXPECT_EQ(type.encode(-tiny), 0x8000);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, ConvertTest,
                         testing::Values(Type{"bf16", ToBFloat16Bits, FromBFloat16Bits, BFloat16ByHardware, 0x7f80},
                                         Type{"fp16", ToFloat16Bits, FromFloat16Bits, Float16ByHardware, 0x7c00}),
                         [](const testing::TestParamInfo<Type>& info) { return info.param.name; });

TEST(ConvertTest, HalfOfRandomFloatsIsWhatHardwareSays) {
  std::mt19937_64 generator(testing_seed::Seed());
  for (int i = 0; i < 1'000'000; ++i) {
    const auto value = std::bit_cast<float>(static_cast<uint32_t>(generator()));
    if (std::isnan(value)) continue;
    ASSERT_EQ(ToFloat16Bits(static_cast<double>(value)), _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT)) << value;
  }
}

TEST(ConvertTest, BuffersOfAnyAlignmentRoundTrip) {
  const std::vector<double> values = {0, -0.0, 1, -2.5, 65504, 1.0 / 3, -kInfinity, 1e-40, 3e38};
  for (DType dtype : kAllDTypes) {
    std::vector<double> rounded;
    for (double x : values) rounded.push_back(RoundTo(dtype, x));
    std::vector<unsigned char> buffer(values.size() * SizeOf(dtype) + 1);
    FromDoubles(dtype, values, buffer.data() + 1);
    EXPECT_EQ(ToDoubles(dtype, buffer.data() + 1, values.size()), rounded) << Name(dtype);
  }
  EXPECT_EQ(RoundTo(DType::kFloat32, 1.0 / 3), static_cast<double>(1.0F / 3));
  EXPECT_EQ(RoundTo(DType::kFloat64, 1.0 / 3), 1.0 / 3);
  EXPECT_EQ(RoundTo(DType::kBFloat16, 1.0 / 3), 0x1.56p-2);
  EXPECT_EQ(RoundTo(DType::kFloat16, 1.0 / 3), 0x1.554p-2);
}

}  // namespace
}  // namespace flashbob
