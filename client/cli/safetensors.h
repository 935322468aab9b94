// File, Write: tensors in safetensors files (the format is described in safetensors_header.h).
//
// A File owns the bytes of its tensors: they are read once, checked, and stay valid and unchanged for its life whatever
// happens to the file on disk. Thread safety: a File is immutable once open.
#ifndef FLASHBOB_CLIENT_CLI_SAFETENSORS_H_
#define FLASHBOB_CLIENT_CLI_SAFETENSORS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/safetensors_header.h"

namespace flashbob::safetensors {

// A named tensor over bytes that someone else owns: little endian, row major.
struct Tensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::span<const std::byte> data;
};

class File {
 public:
  // Of each tensor's first byte, so that engines can use it in place.
  static constexpr size_t kAlignment = 256;

  // Reads a file. NOT_FOUND where there is none, INVALID_ARGUMENT (path, tensor and numbers in the text) where it is
  // not a valid safetensors file with the types of DType, RESOURCE_EXHAUSTED where it does not fit in memory.
  static absl::StatusOr<File> Open(const std::string& path);

  const std::vector<Tensor>& tensors() const { return tensors_; }  // in the order in which they lie in the file
  // Null where there is none of that name.
  const Tensor* Find(std::string_view name) const;
  const Metadata& metadata() const { return metadata_; }

 private:
  struct AlignedDelete {
    void operator()(std::byte* pointer) const;
  };

  File() = default;

  std::unique_ptr<std::byte[], AlignedDelete> bytes_;
  std::vector<Tensor> tensors_;
  Metadata metadata_;
};

// Writes a file: beside `path` under another name first, then renamed, so that `path` is either what it was or the
// whole new file. Names must differ and be UTF-8, and the data have the bytes that dtype and shape need.
absl::Status Write(const std::string& path, std::span<const Tensor> tensors, const Metadata& metadata);

// The values of an I32 or I64 tensor with one axis, as cu_seqlens are. INVALID_ARGUMENT for any other.
absl::StatusOr<std::vector<int64_t>> ToIntegers(const Tensor& tensor);

}  // namespace flashbob::safetensors

#endif  // FLASHBOB_CLIENT_CLI_SAFETENSORS_H_
