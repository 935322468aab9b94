#include "server/service/download.h"

#include <algorithm>
#include <utility>

namespace flashbob::server {

Download::Download(std::vector<TensorBytes> tensors, int64_t chunk_bytes)
    : tensors_(std::move(tensors)), chunk_bytes_(chunk_bytes) {
  for (const TensorBytes& tensor : tensors_) total_bytes_ += tensor.bytes;
  SkipFinished();
}

void Download::FillIn(v1::ComputeResult& result) {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (tensors_[i].bytes == 0) continue;
    result.mutable_tensors(static_cast<int>(i))->set_data(tensors_[i].data, static_cast<size_t>(tensors_[i].bytes));
  }
  tensor_ = tensors_.size();
}

void Download::Next(v1::TensorChunk& chunk) {
  const TensorBytes& tensor = tensors_[tensor_];
  const int64_t size = std::min(chunk_bytes_, tensor.bytes - offset_);
  chunk.set_tensor_index(static_cast<uint32_t>(tensor_));
  chunk.set_byte_offset(offset_);
  chunk.set_data(tensor.data + offset_, static_cast<size_t>(size));
  offset_ += size;
  SkipFinished();
}

void Download::SkipFinished() {
  while (tensor_ < tensors_.size() && offset_ == tensors_[tensor_].bytes) {
    ++tensor_;
    offset_ = 0;
  }
}

}  // namespace flashbob::server
