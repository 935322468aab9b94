#include "kernels/cpu/row_conversion.h"

#include <immintrin.h>

#include <bit>
#include <cstring>

namespace flashbob::cpu {
namespace {

void WidenBFloat16(const uint16_t* source, int64_t elements, float* target) {
  for (int64_t i = 0; i < elements; ++i) target[i] = std::bit_cast<float>(static_cast<uint32_t>(source[i]) << 16);
}

void NarrowBFloat16(const float* source, int64_t elements, uint16_t* target) {
  for (int64_t i = 0; i < elements; ++i) {
    const auto bits = std::bit_cast<uint32_t>(source[i]);
    // Adding just under half of the last place, and one more where that place is odd, rounds to nearest even. On a NaN
    // the sum could carry into infinity: keep its upper half, made quiet.
    const uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
    const bool is_nan = (bits & 0x7FFFFFFF) > 0x7F800000;
    target[i] = static_cast<uint16_t>(is_nan ? (bits >> 16) | 0x40 : rounded);
  }
}

// F16C is part of x86-64-v3.
void WidenFloat16(const uint16_t* source, int64_t elements, float* target) {
  int64_t i = 0;
  for (; i + 8 <= elements; i += 8) {
    _mm256_storeu_ps(target + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(source + i))));
  }
  for (; i < elements; ++i) target[i] = _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(source[i])));
}

void NarrowFloat16(const float* source, int64_t elements, uint16_t* target) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  int64_t i = 0;
  for (; i + 8 <= elements; i += 8) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(target + i), _mm256_cvtps_ph(_mm256_loadu_ps(source + i), kNearest));
  }
  for (; i < elements; ++i) {
    target[i] = static_cast<uint16_t>(_mm_cvtsi128_si32(_mm_cvtps_ph(_mm_set_ss(source[i]), kNearest)));
  }
}

}  // namespace

void Widen(DType dtype, const void* source, int64_t elements, float* target) {
  switch (dtype) {
    case DType::kBFloat16:
      return WidenBFloat16(static_cast<const uint16_t*>(source), elements, target);
    case DType::kFloat16:
      return WidenFloat16(static_cast<const uint16_t*>(source), elements, target);
    default:
      std::memcpy(target, source, static_cast<size_t>(elements) * sizeof(float));
  }
}

void Narrow(DType dtype, const float* source, int64_t elements, void* target) {
  switch (dtype) {
    case DType::kBFloat16:
      return NarrowBFloat16(source, elements, static_cast<uint16_t*>(target));
    case DType::kFloat16:
      return NarrowFloat16(source, elements, static_cast<uint16_t*>(target));
    default:
      std::memcpy(target, source, static_cast<size_t>(elements) * sizeof(float));
  }
}

void Widen(DType, const void* source, int64_t elements, double* target) {
  std::memcpy(target, source, static_cast<size_t>(elements) * sizeof(double));
}

void Narrow(DType, const double* source, int64_t elements, void* target) {
  std::memcpy(target, source, static_cast<size_t>(elements) * sizeof(double));
}

}  // namespace flashbob::cpu
