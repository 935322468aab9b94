// Header: the JSON part of a safetensors file: which tensors it holds, of which type and shape, and where.
//
//   file = uint64 (little endian) length n | n bytes of JSON, an object | tensors' bytes, one after the other
//   JSON = {"__metadata__": {text: text, ...}, name: {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}
//
// Offsets count from the end of the JSON. The tensors cover the bytes that follow it: no gap, no overlap, no rest.
// Plain values; thread safety as of any value.
#ifndef FLASHBOB_CLIENT_CLI_SAFETENSORS_HEADER_H_
#define FLASHBOB_CLIENT_CLI_SAFETENSORS_HEADER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace flashbob::safetensors {

// The format's element types of whole bytes.
enum class DType : uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E4M3,
  kF8E5M2,
  kU16,
  kI16,
  kBF16,
  kF16,
  kU32,
  kI32,
  kF32,
  kU64,
  kI64,
  kF64
};
const char* Name(DType dtype);  // "BF16", ...
std::optional<DType> ParseDType(std::string_view name);
size_t SizeOf(DType dtype);  // bytes of an element

using Metadata = std::map<std::string, std::string>;

// Where one tensor lies, in bytes from the end of the JSON: [begin, end), as many as dtype and shape need.
struct Entry {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  uint64_t begin = 0;
  uint64_t end = 0;
};

struct Header {
  std::vector<Entry> entries;  // by increasing offset
  Metadata metadata;
};

// A longer JSON is refused before it is read, in bytes.
inline constexpr uint64_t kMaxHeaderBytes = uint64_t{16} << 20;

// Parses and checks the JSON of a file with `data_bytes` bytes after it. INVALID_ARGUMENT, naming tensor and numbers,
// for whatever is not as described above: nothing of the text is trusted.
absl::StatusOr<Header> ParseHeader(std::string_view json, uint64_t data_bytes);

// The bytes of a tensor; nothing where an extent is negative or the product does not fit in 63 bits.
std::optional<uint64_t> NumBytes(DType dtype, const std::vector<int64_t>& shape);

}  // namespace flashbob::safetensors

#endif  // FLASHBOB_CLIENT_CLI_SAFETENSORS_HEADER_H_
