// HostBuffer: bytes in host memory, aligned as engines want tensors. Owns them; move-only; not initialised.
#ifndef FLASHBOB_CLIENT_CLI_HOST_BUFFER_H_
#define FLASHBOB_CLIENT_CLI_HOST_BUFFER_H_

#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>
#include <span>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "kernels/engine.h"

namespace flashbob::cli {

class HostBuffer {
 public:
  static absl::StatusOr<HostBuffer> Create(size_t bytes) {
    HostBuffer buffer;
    buffer.bytes_ = bytes;
    buffer.memory_.reset(static_cast<std::byte*>(
        ::operator new[](std::max<size_t>(bytes, 1), std::align_val_t{kTensorAlignment}, std::nothrow)));
    if (buffer.memory_ == nullptr) return absl::ResourceExhaustedError(absl::StrCat("no memory for ", bytes, " bytes"));
    return buffer;
  }

  std::byte* data() { return memory_.get(); }
  std::span<const std::byte> span() const { return {memory_.get(), bytes_}; }

 private:
  struct Delete {
    void operator()(std::byte* pointer) const { ::operator delete[](pointer, std::align_val_t{kTensorAlignment}); }
  };

  HostBuffer() = default;

  std::unique_ptr<std::byte[], Delete> memory_;
  size_t bytes_ = 0;
};

}  // namespace flashbob::cli

#endif  // FLASHBOB_CLIENT_CLI_HOST_BUFFER_H_
