#include "kernels/conformance/host_tensor.h"

#include <algorithm>

#include "kernels/convert.h"
#include "kernels/engine.h"

namespace flashbob::conformance {
namespace {

constexpr size_t kGuardBytes = 256;
constexpr unsigned char kPoison = 0xff;

}  // namespace

HostTensor::HostTensor(DType dtype, size_t elements)
    : dtype_(dtype),
      elements_(elements),
      memory_(elements * SizeOf(dtype) + 2 * kGuardBytes + kTensorAlignment, kPoison) {
  const auto address = reinterpret_cast<uintptr_t>(memory_.data()) + kGuardBytes;
  begin_ = kGuardBytes + (kTensorAlignment - address % kTensorAlignment) % kTensorAlignment;
}

HostTensor::HostTensor(DType dtype, const std::vector<double>& values) : HostTensor(dtype, values.size()) {
  FromDoubles(dtype, values, data());
}

std::vector<double> HostTensor::Values() const { return ToDoubles(dtype_, data(), elements_); }

int64_t HostTensor::CountPoisoned() const {
  const auto* bytes = static_cast<const unsigned char*>(data());
  int64_t count = 0;
  for (size_t i = 0; i < elements_; ++i, bytes += SizeOf(dtype_)) {
    count += std::all_of(bytes, bytes + SizeOf(dtype_), [](unsigned char byte) { return byte == kPoison; }) ? 1 : 0;
  }
  return count;
}

bool HostTensor::GuardsIntact() const {
  const auto intact = [](unsigned char byte) { return byte == kPoison; };
  const auto begin = memory_.begin() + static_cast<std::ptrdiff_t>(begin_);
  return std::all_of(memory_.begin(), begin, intact) &&
         std::all_of(begin + static_cast<std::ptrdiff_t>(bytes()), memory_.end(), intact);
}

}  // namespace flashbob::conformance
