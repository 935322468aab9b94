// HostTensor: the bytes of one tensor in host memory, aligned as engines need them, with guards on both sides.
//
// Filled with a poison that no engine writes: all bits set, a NaN in every dtype. Owns its memory; move-only; one
// thread at a time.
#ifndef FLASHBOB_KERNELS_CONFORMANCE_HOST_TENSOR_H_
#define FLASHBOB_KERNELS_CONFORMANCE_HOST_TENSOR_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/dtype.h"

namespace flashbob::conformance {

class HostTensor {
 public:
  HostTensor(DType dtype, size_t elements);
  HostTensor(DType dtype, const std::vector<double>& values);
  HostTensor(HostTensor&&) = default;
  HostTensor& operator=(HostTensor&&) = default;

  void* data() { return memory_.data() + begin_; }
  const void* data() const { return memory_.data() + begin_; }
  size_t bytes() const { return elements_ * SizeOf(dtype_); }

  std::vector<double> Values() const;
  // Elements that still hold the poison.
  int64_t CountPoisoned() const;
  // Whether nothing was written just before or after the tensor.
  bool GuardsIntact() const;

 private:
  DType dtype_;
  size_t elements_;
  std::vector<unsigned char> memory_;
  size_t begin_;
};

}  // namespace flashbob::conformance

#endif  // FLASHBOB_KERNELS_CONFORMANCE_HOST_TENSOR_H_
