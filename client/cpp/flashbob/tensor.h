// DataType, TensorView, Tensor: tensors as the client library takes and gives them: row major, little endian.
//
// A TensorView is a value that points at the caller's memory: it must stay as it is until the call that it was given to
// has ended. A Tensor owns its memory, or writes into the caller's. Thread safety: as of any value.
#ifndef FLASHBOB_CLIENT_CPP_FLASHBOB_TENSOR_H_
#define FLASHBOB_CLIENT_CPP_FLASHBOB_TENSOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace flashbob::client {

enum class DataType : uint8_t { kBF16, kFP16, kFP32, kFP64 };
const char* Name(DataType dtype);  // "bf16", "fp16", "fp32", "fp64"
size_t SizeOf(DataType dtype);     // bytes of an element

using Shape = std::vector<int64_t>;
std::string ToString(const Shape& shape);  // "[1, 4, 2048, 64]"

// Bytes of a tensor; nothing where an extent is negative or the product does not fit in 63 bits.
std::optional<int64_t> NumBytes(DataType dtype, const Shape& shape);

// The DataType of a C++ type. 16-bit types have none: give their bits as uint16_t beside the DataType.
template <typename T>
inline constexpr std::optional<DataType> kDataTypeOf = std::nullopt;
template <>
inline constexpr std::optional<DataType> kDataTypeOf<float> = DataType::kFP32;
template <>
inline constexpr std::optional<DataType> kDataTypeOf<double> = DataType::kFP64;

// A tensor over memory that someone else owns. As an operation's optional input, a default one is left out.
struct TensorView {
  TensorView() = default;
  TensorView(DataType dtype, std::span<const std::byte> bytes, Shape shape)
      : dtype(dtype), shape(std::move(shape)), bytes(bytes) {}
  // bf16 and fp16, as bits.
  TensorView(DataType dtype, std::span<const uint16_t> values, Shape shape)
      : TensorView(dtype, std::as_bytes(values), std::move(shape)) {}
  TensorView(std::span<const float> values, Shape shape)
      : TensorView(DataType::kFP32, std::as_bytes(values), std::move(shape)) {}
  TensorView(std::span<const double> values, Shape shape)
      : TensorView(DataType::kFP64, std::as_bytes(values), std::move(shape)) {}

  // No tensor of attention is without axes.
  bool given() const { return !shape.empty(); }

  DataType dtype = DataType::kFP32;
  Shape shape;
  std::span<const std::byte> bytes;
};

// A tensor that stays on the server, under a handle. Client::PutTensors and results give them; whoever has one may use
// it until its lease, which every use renews, is over.
struct StoredTensor {
  std::string handle;
  DataType dtype = DataType::kFP32;
  Shape shape;
};

class Tensor {
 public:
  // In memory of its own, not initialised, or, where `into` is given, there. INVALID_ARGUMENT where `into` has not the
  // size that dtype and shape need or they need more than 63 bits; RESOURCE_EXHAUSTED where there is no memory.
  static absl::StatusOr<Tensor> Create(DataType dtype, Shape shape,
                                       std::optional<std::span<std::byte>> into = std::nullopt);

  Tensor() = default;

  DataType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  std::span<const std::byte> bytes() const { return bytes_; }
  std::span<std::byte> mutable_bytes() { return bytes_; }
  TensorView view() const { return {dtype_, bytes(), shape_}; }

  // The elements, where T is their type (for 16-bit ones uint16_t: their bits); an empty span where it is not.
  template <typename T>
  std::span<const T> Values() const {
    const bool same = kDataTypeOf<T> == dtype_ || (std::is_same_v<T, uint16_t> && SizeOf(dtype_) == sizeof(T));
    if (!same) return {};
    return {reinterpret_cast<const T*>(bytes_.data()), bytes_.size() / sizeof(T)};
  }

 private:
  DataType dtype_ = DataType::kFP32;
  Shape shape_;
  std::unique_ptr<std::byte[]> owned_;  // null where the caller's memory is used
  std::span<std::byte> bytes_;
};

}  // namespace flashbob::client

#endif  // FLASHBOB_CLIENT_CPP_FLASHBOB_TENSOR_H_
