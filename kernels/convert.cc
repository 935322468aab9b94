#include "kernels/convert.h"

#include <bit>
#include <cstring>

namespace flashbob {
namespace {

// A 16-bit binary format: sign, exponent and mantissa, as IEEE 754 orders them.
struct Format {
  int exponent_bits;
  int mantissa_bits;

  constexpr int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  constexpr uint64_t infinity() const { return ((uint64_t{1} << exponent_bits) - 1) << mantissa_bits; }
};

constexpr Format kBFloat16Format = {8, 7};
constexpr Format kFloat16Format = {5, 10};

constexpr int kDoubleMantissaBits = 52;
constexpr int kDoubleBias = 1023;
constexpr uint64_t kDoubleMantissa = (uint64_t{1} << kDoubleMantissaBits) - 1;

// bits >> shift, rounded to nearest, ties to even.
uint64_t ShiftRounded(uint64_t bits, int shift) {
  if (shift > kDoubleMantissaBits + 2) return 0;
  const uint64_t kept = bits >> shift;
  const uint64_t lost = bits & ((uint64_t{1} << shift) - 1);
  const uint64_t half = uint64_t{1} << (shift - 1);
  return kept + (lost > half || (lost == half && (kept & 1) != 0) ? 1 : 0);
}

uint16_t Encode(const Format& format, double value) {
  const auto bits = std::bit_cast<uint64_t>(value);
  const uint64_t sign = bits >> 63 << 15;
  const int exponent_field = static_cast<int>(bits >> kDoubleMantissaBits & 0x7ff);
  const uint64_t mantissa = bits & kDoubleMantissa;
  const int dropped_bits = kDoubleMantissaBits - format.mantissa_bits;
  if (exponent_field == 0x7ff) {
    const uint64_t quiet = uint64_t{1} << (format.mantissa_bits - 1);
    const uint64_t payload = mantissa == 0 ? 0 : quiet | mantissa >> dropped_bits;
    return static_cast<uint16_t>(sign | format.infinity() | payload);
  }
  if (exponent_field == 0) return static_cast<uint16_t>(sign);  // far below half of the smallest denormal

  const int exponent = exponent_field - kDoubleBias + format.bias();
  const uint64_t significand = mantissa | uint64_t{1} << kDoubleMantissaBits;
  uint64_t magnitude;
  if (exponent >= 1) {
    // The leading bit adds one to the exponent field; a carry of the rounding adds another, as it should.
    if (exponent >= 1 << format.exponent_bits) return static_cast<uint16_t>(sign | format.infinity());
    magnitude = (static_cast<uint64_t>(exponent - 1) << format.mantissa_bits) + ShiftRounded(significand, dropped_bits);
  } else {
    magnitude = ShiftRounded(significand, dropped_bits + 1 - exponent);
  }
  return static_cast<uint16_t>(sign | (magnitude < format.infinity() ? magnitude : format.infinity()));
}

double Decode(const Format& format, uint16_t bits) {
  const uint64_t sign = static_cast<uint64_t>(bits >> 15) << 63;
  const uint64_t magnitude = bits & 0x7fff;
  const uint64_t mantissa = magnitude & ((uint64_t{1} << format.mantissa_bits) - 1);
  const int exponent = static_cast<int>(magnitude >> format.mantissa_bits);
  const int added_bits = kDoubleMantissaBits - format.mantissa_bits;
  if (magnitude >= format.infinity()) {
    return std::bit_cast<double>(sign | uint64_t{0x7ff} << kDoubleMantissaBits | mantissa << added_bits);
  }
  if (exponent == 0) {
    const double unit = std::bit_cast<double>(
        static_cast<uint64_t>(1 - format.bias() - format.mantissa_bits + kDoubleBias) << kDoubleMantissaBits);
    const double value = static_cast<double>(mantissa) * unit;
    return sign != 0 ? -value : value;
  }
  return std::bit_cast<double>(sign |
                               static_cast<uint64_t>(exponent - format.bias() + kDoubleBias) << kDoubleMantissaBits |
                               mantissa << added_bits);
}

template <typename T>
T Load(const void* data, size_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(data) + index * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
void Store(void* data, size_t index, T value) {
  std::memcpy(static_cast<char*>(data) + index * sizeof(T), &value, sizeof(T));
}

}  // namespace

uint16_t ToBFloat16Bits(double value) { return Encode(kBFloat16Format, value); }
uint16_t ToFloat16Bits(double value) { return Encode(kFloat16Format, value); }
double FromBFloat16Bits(uint16_t bits) { return Decode(kBFloat16Format, bits); }
double FromFloat16Bits(uint16_t bits) { return Decode(kFloat16Format, bits); }

double RoundTo(DType dtype, double value) {
  switch (dtype) {
    case DType::kBFloat16:
      return FromBFloat16Bits(ToBFloat16Bits(value));
    case DType::kFloat16:
      return FromFloat16Bits(ToFloat16Bits(value));
    case DType::kFloat32:
      return static_cast<double>(static_cast<float>(value));
    case DType::kFloat64:
      return value;
  }
  return value;
}

std::vector<double> ToDoubles(DType dtype, const void* data, size_t elements) {
  std::vector<double> values(elements);
  for (size_t i = 0; i < elements; ++i) {
    switch (dtype) {
      case DType::kBFloat16:
        values[i] = FromBFloat16Bits(Load<uint16_t>(data, i));
        break;
      case DType::kFloat16:
        values[i] = FromFloat16Bits(Load<uint16_t>(data, i));
        break;
      case DType::kFloat32:
        values[i] = static_cast<double>(Load<float>(data, i));
        break;
      case DType::kFloat64:
        values[i] = Load<double>(data, i);
        break;
    }
  }
  return values;
}

void FromDoubles(DType dtype, const std::vector<double>& values, void* data) {
  for (size_t i = 0; i < values.size(); ++i) {
    switch (dtype) {
      case DType::kBFloat16:
        Store(data, i, ToBFloat16Bits(values[i]));
        break;
      case DType::kFloat16:
        Store(data, i, ToFloat16Bits(values[i]));
        break;
      case DType::kFloat32:
        Store(data, i, static_cast<float>(values[i]));
        break;
      case DType::kFloat64:
        Store(data, i, values[i]);
        break;
    }
  }
}

}  // namespace flashbob
