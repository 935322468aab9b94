#include "flashbob/tensor.h"

#include <limits>
#include <new>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace flashbob::client {

const char* Name(DataType dtype) {
  switch (dtype) {
    case DataType::kBF16:
      return "bf16";
    case DataType::kFP16:
      return "fp16";
    case DataType::kFP32:
      return "fp32";
    case DataType::kFP64:
      return "fp64";
  }
  return "unknown";
}

size_t SizeOf(DataType dtype) {
  switch (dtype) {
    case DataType::kBF16:
    case DataType::kFP16:
      return 2;
    case DataType::kFP32:
      return 4;
    case DataType::kFP64:
      return 8;
  }
  return 0;
}

std::string ToString(const Shape& shape) { return absl::StrCat("[", absl::StrJoin(shape, ", "), "]"); }

std::optional<int64_t> NumBytes(DataType dtype, const Shape& shape) {
  bool empty = false;
  for (int64_t extent : shape) {
    if (extent < 0) return std::nullopt;
    empty = empty || extent == 0;
  }
  if (empty) return 0;
  auto bytes = static_cast<int64_t>(SizeOf(dtype));
  for (int64_t extent : shape) {
    if (extent > std::numeric_limits<int64_t>::max() / bytes) return std::nullopt;
    bytes *= extent;
  }
  return bytes;
}

absl::StatusOr<Tensor> Tensor::Create(DataType dtype, Shape shape, std::optional<std::span<std::byte>> into) {
  const std::optional<int64_t> bytes = NumBytes(dtype, shape);
  if (!bytes.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat(Name(dtype), " ", ToString(shape), " is negative or has more bytes than fit in 63 bits"));
  }
  const auto size = static_cast<size_t>(*bytes);
  Tensor tensor;
  if (into.has_value()) {
    if (into->size() != size) {
      return absl::InvalidArgumentError(absl::StrCat(Name(dtype), " ", ToString(shape), " has ", size,
                                                     " bytes; the memory given has ", into->size()));
    }
    tensor.bytes_ = *into;
  } else {
    tensor.owned_.reset(new (std::nothrow) std::byte[size]);
    if (tensor.owned_ == nullptr) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no memory for ", Name(dtype), " ", ToString(shape), ", ", size, " bytes"));
    }
    tensor.bytes_ = {tensor.owned_.get(), size};
  }
  tensor.dtype_ = dtype;
  tensor.shape_ = std::move(shape);
  return tensor;
}

}  // namespace flashbob::client
