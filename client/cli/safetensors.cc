#include "client/cli/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <new>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace flashbob::safetensors {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors are little endian and used in place");

constexpr uint64_t kLengthBytes = 8;

absl::Status SystemError(const std::string& what, int error) { return absl::ErrnoToStatus(error, what); }

absl::Status ReadFully(int descriptor, const std::string& path, uint64_t offset, std::span<std::byte> into) {
  while (!into.empty()) {
    const ssize_t got = pread(descriptor, into.data(), into.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return SystemError(absl::StrCat("cannot read ", path), errno);
    if (got == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, " became shorter than ", offset, " bytes while it was read"));
    }
    offset += static_cast<uint64_t>(got);
    into = into.subspan(static_cast<size_t>(got));
  }
  return absl::OkStatus();
}

absl::Status WriteFully(int descriptor, const std::string& path, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t put = write(descriptor, bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return SystemError(absl::StrCat("cannot write ", path), errno);
    bytes = bytes.subspan(static_cast<size_t>(put));
  }
  return absl::OkStatus();
}

absl::Status InFile(const std::string& path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

uint64_t RoundUp(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

// JSON of a text, or nothing where it is not UTF-8: only then do the two ways to treat errors differ.
bool IsUtf8(const std::string& text) {
  using Handler = nlohmann::json::error_handler_t;
  const nlohmann::json json(text);
  return json.dump(-1, ' ', false, Handler::replace) == json.dump(-1, ' ', false, Handler::ignore);
}

// The length and the JSON, padded so that the tensors begin at a multiple of 8.
absl::StatusOr<std::string> EncodeHeader(const std::vector<const Tensor*>& tensors, const Metadata& metadata) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const auto& [key, value] : metadata) {
    if (!IsUtf8(key) || !IsUtf8(value)) return absl::InvalidArgumentError("metadata must be UTF-8");
    json["__metadata__"][key] = value;
  }
  std::set<std::string> names;
  uint64_t offset = 0;
  for (const Tensor* tensor : tensors) {
    const std::optional<uint64_t> bytes = NumBytes(tensor->dtype, tensor->shape);
    if (!bytes.has_value() || *bytes != tensor->data.size()) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", tensor->name, " has ", tensor->data.size(),
                                                     " bytes, not what its ", tensor->shape.size(), " axes need"));
    }
    if (!IsUtf8(tensor->name) || tensor->name == "__metadata__" || !names.insert(tensor->name).second) {
      return absl::InvalidArgumentError(absl::StrCat("tensor name ", tensor->name, " is taken, reserved or not UTF-8"));
    }
    json[tensor->name] = {
        {"dtype", Name(tensor->dtype)}, {"shape", tensor->shape}, {"data_offsets", {offset, offset + *bytes}}};
    offset += *bytes;
  }
  std::string text = json.dump();
  text.resize(RoundUp(text.size(), 8), ' ');
  if (text.size() > kMaxHeaderBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the header takes ", text.size(), " bytes; the limit is ", kMaxHeaderBytes));
  }
  const uint64_t length = text.size();
  std::string encoded(kLengthBytes, '\0');
  std::memcpy(encoded.data(), &length, kLengthBytes);
  return encoded + text;
}

}  // namespace

void File::AlignedDelete::operator()(std::byte* pointer) const {
  ::operator delete[](pointer, std::align_val_t{kAlignment});
}

absl::StatusOr<File> File::Open(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return SystemError(absl::StrCat("cannot open ", path), errno);
  const auto close_file = absl::MakeCleanup([descriptor] { close(descriptor); });
  struct stat info = {};
  if (fstat(descriptor, &info) != 0) return SystemError(absl::StrCat("cannot inspect ", path), errno);
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError(absl::StrCat(path, " is not a regular file"));

  const auto size = static_cast<uint64_t>(info.st_size);
  if (size < kLengthBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " has ", size, " bytes; a safetensors file has at least ", kLengthBytes));
  }
  uint64_t header_bytes = 0;
  FLASHBOB_RETURN_IF_ERROR(ReadFully(descriptor, path, 0, std::as_writable_bytes(std::span(&header_bytes, 1))));
  if (header_bytes > size - kLengthBytes || header_bytes > kMaxHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, " claims a header of ", header_bytes, " bytes; the file has ",
                                                   size, " and the limit is ", kMaxHeaderBytes,
                                                   ": is it a safetensors file?"));
  }
  std::string json(header_bytes, '\0');
  FLASHBOB_RETURN_IF_ERROR(ReadFully(descriptor, path, kLengthBytes, std::as_writable_bytes(std::span(json))));
  const uint64_t data_start = kLengthBytes + header_bytes;
  absl::StatusOr<Header> header = ParseHeader(json, size - data_start);
  if (!header.ok()) return InFile(path, header.status());

  // The entries cover the file's bytes once, so that this is bounded by the file's size and the header's.
  uint64_t total = 0;
  for (const Entry& entry : header->entries) total += RoundUp(entry.end - entry.begin, kAlignment);
  File file;
  file.bytes_.reset(static_cast<std::byte*>(
      ::operator new[](std::max<uint64_t>(total, 1), std::align_val_t{kAlignment}, std::nothrow)));
  if (file.bytes_ == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat(path, " needs ", total, " bytes of memory"));
  }
  std::byte* next = file.bytes_.get();
  for (Entry& entry : header->entries) {
    const uint64_t bytes = entry.end - entry.begin;
    FLASHBOB_RETURN_IF_ERROR(ReadFully(descriptor, path, data_start + entry.begin, {next, bytes}));
    file.tensors_.push_back({std::move(entry.name), entry.dtype, std::move(entry.shape), {next, bytes}});
    next += RoundUp(bytes, kAlignment);
  }
  file.metadata_ = std::move(header->metadata);
  return file;
}

const Tensor* File::Find(std::string_view name) const {
  for (const Tensor& tensor : tensors_) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

absl::Status Write(const std::string& path, std::span<const Tensor> tensors, const Metadata& metadata) {
  // Widest elements first: then every tensor begins at a multiple of its element size.
  std::vector<const Tensor*> order;
  for (const Tensor& tensor : tensors) order.push_back(&tensor);
  std::stable_sort(order.begin(), order.end(),
                   [](const Tensor* a, const Tensor* b) { return SizeOf(a->dtype) > SizeOf(b->dtype); });
  absl::StatusOr<std::string> header = EncodeHeader(order, metadata);
  if (!header.ok()) return InFile(path, header.status());

  struct stat info = {};
  if (stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " exists and is not a regular file"));
  }
  const std::string temporary = absl::StrCat(path, ".", getpid(), ".tmp");
  const int descriptor = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (descriptor < 0) return SystemError(absl::StrCat("cannot create ", temporary), errno);
  auto remove = absl::MakeCleanup([&] { unlink(temporary.c_str()); });
  absl::Status written = WriteFully(descriptor, temporary, std::as_bytes(std::span(*header)));
  for (const Tensor* tensor : order) {
    if (written.ok()) written = WriteFully(descriptor, temporary, tensor->data);
  }
  if (close(descriptor) != 0 && written.ok()) written = SystemError(absl::StrCat("cannot write ", temporary), errno);
  FLASHBOB_RETURN_IF_ERROR(written);
  if (rename(temporary.c_str(), path.c_str()) != 0) {
    return SystemError(absl::StrCat("cannot rename ", temporary, " to ", path), errno);
  }
  std::move(remove).Cancel();
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int64_t>> ToIntegers(const Tensor& tensor) {
  const bool wide = tensor.dtype == DType::kI64;
  if ((!wide && tensor.dtype != DType::kI32) || tensor.shape.size() != 1) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", tensor.name, " is ", Name(tensor.dtype), " with ",
                                                   tensor.shape.size(), " axes; it must be I32 or I64 with 1"));
  }
  std::vector<int64_t> values;
  for (size_t i = 0; i < static_cast<size_t>(tensor.shape[0]); ++i) {
    int64_t value = 0;
    if (wide) {
      std::memcpy(&value, tensor.data.data() + i * sizeof(int64_t), sizeof(int64_t));
    } else {
      int32_t narrow = 0;
      std::memcpy(&narrow, tensor.data.data() + i * sizeof(int32_t), sizeof(int32_t));
      value = narrow;
    }
    values.push_back(value);
  }
  return values;
}

}  // namespace flashbob::safetensors
