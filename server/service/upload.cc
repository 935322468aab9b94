#include "server/service/upload.h"

#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/errors.h"

namespace flashbob::server {
namespace {

absl::Status BadChunk(const std::string& text) { return Error(Reason::kBadChunk, text); }

}  // namespace

Upload::Upload(std::vector<TensorBytes> tensors, int64_t max_chunk_bytes)
    : tensors_(std::move(tensors)), max_chunk_bytes_(max_chunk_bytes), received_(tensors_.size(), 0) {
  for (const TensorBytes& tensor : tensors_) total_bytes_ += tensor.bytes;
}

absl::Status Upload::Accept(const v1::TensorChunk& chunk) {
  if (chunk.tensor_index() >= tensors_.size()) {
    return BadChunk(
        absl::StrCat("chunk of tensor ", chunk.tensor_index(), "; the spec has ", tensors_.size(), " inputs"));
  }
  const TensorBytes& tensor = tensors_[chunk.tensor_index()];
  int64_t& received = received_[chunk.tensor_index()];
  const auto size = static_cast<int64_t>(chunk.data().size());
  if (size > max_chunk_bytes_) {
    return BadChunk(absl::StrCat("chunk of ", Name(tensor.name), " has ", size, " bytes; at most ", max_chunk_bytes_,
                                 " are allowed"));
  }
  if (chunk.byte_offset() != received) {
    return BadChunk(absl::StrCat("chunk of ", Name(tensor.name), " begins at byte ", chunk.byte_offset(), "; ",
                                 received, " bytes of it came before"));
  }
  if (size > tensor.bytes - received) {
    return BadChunk(absl::StrCat("chunk of ", Name(tensor.name), " of ", size, " bytes at ", received,
                                 " passes the tensor's end at ", tensor.bytes));
  }
  if (size == 0 && tensor.bytes > 0) {
    return BadChunk(absl::StrCat("chunk of ", Name(tensor.name), " at byte ", received, " is empty"));
  }
  if (size == 0) return absl::OkStatus();
  std::memcpy(tensor.data + received, chunk.data().data(), static_cast<size_t>(size));
  received += size;
  received_bytes_ += size;
  return absl::OkStatus();
}

absl::Status Upload::Ended() const {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (received_[i] < tensors_[i].bytes) {
      return BadChunk(absl::StrCat("the upload ended with ", received_[i], " of the ", tensors_[i].bytes, " bytes of ",
                                   Name(tensors_[i].name), ", ", received_bytes_, " of ", total_bytes_, " in all"));
    }
  }
  return absl::OkStatus();
}

}  // namespace flashbob::server
