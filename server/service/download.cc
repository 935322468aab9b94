#include "server/service/download.h"

#include <algorithm>
#include <utility>

namespace flashbob::server {

Download::Download(std::vector<TensorBytes> tensors, int64_t chunk_bytes)
    : tensors_(std::move(tensors)), chunk_bytes_(chunk_bytes) {
  SkipFinished();
}

int64_t Download::FillIn(v1::ComputeResult& result, int64_t max_bytes) {
  int64_t filled = 0;
  while (!done() && tensors_[tensor_].bytes <= max_bytes - filled) {
    const TensorBytes& tensor = tensors_[tensor_];
    result.mutable_tensors(static_cast<int>(tensor_))->set_data(tensor.data, static_cast<size_t>(tensor.bytes));
    filled += tensor.bytes;
    offset_ = tensor.bytes;
    SkipFinished();
  }
  return filled;
}

Download::Chunk Download::Next() {
  const TensorBytes& tensor = tensors_[tensor_];
  const int64_t size = std::min(chunk_bytes_, tensor.bytes - offset_);
  const Chunk chunk = {tensor_, offset_, {tensor.data + offset_, static_cast<size_t>(size)}};
  offset_ += size;
  SkipFinished();
  return chunk;
}

void Download::SkipFinished() {
  while (tensor_ < tensors_.size() && offset_ == tensors_[tensor_].bytes) {
    ++tensor_;
    offset_ = 0;
  }
}

}  // namespace flashbob::server
