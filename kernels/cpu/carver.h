// Carver: hands out parts of one block of memory. Over a null base it only counts, so that the size of a layout and the
// layout itself come from the same lines.
#ifndef FLASHBOB_KERNELS_CPU_CARVER_H_
#define FLASHBOB_KERNELS_CPU_CARVER_H_

#include <cstddef>
#include <cstdint>

namespace flashbob::cpu {

class Carver {
 public:
  // `base` is aligned to kAlignment, or null.
  explicit Carver(std::byte* base) : base_(base) {}

  static constexpr size_t kAlignment = 64;

  // Room for `count` Ts, aligned to kAlignment; null where count is 0 or the base is null.
  template <typename T>
  T* Take(int64_t count) {
    T* part = base_ == nullptr || count == 0 ? nullptr : reinterpret_cast<T*>(base_ + bytes_);
    const size_t bytes = static_cast<size_t>(count) * sizeof(T);
    bytes_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return part;
  }

  size_t bytes() const { return bytes_; }

 private:
  std::byte* base_;
  size_t bytes_ = 0;
};

}  // namespace flashbob::cpu

#endif  // FLASHBOB_KERNELS_CPU_CARVER_H_
