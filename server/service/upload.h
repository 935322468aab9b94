// Upload: takes the chunks of a call's inputs and copies them to where the tensors lie.
#ifndef FLASHBOB_SERVER_SERVICE_UPLOAD_H_
#define FLASHBOB_SERVER_SERVICE_UPLOAD_H_

#include <vector>

#include "absl/status/status.h"
#include "flashbob/v1/tensor.pb.h"
#include "server/service/tensor_bytes.h"

namespace flashbob::server {

// Not thread safe. The tensors' memory must outlive the calls of Accept.
class Upload {
 public:
  Upload(std::vector<TensorBytes> tensors, int64_t max_chunk_bytes);

  // Copies a chunk to its place; BAD_CHUNK, with the numbers, where it has none.
  absl::Status Accept(const v1::TensorChunk& chunk);

  bool complete() const { return received_bytes_ == total_bytes_; }
  int64_t received_bytes() const { return received_bytes_; }
  int64_t total_bytes() const { return total_bytes_; }
  // What to answer where no more chunks come: OK where the upload is complete.
  absl::Status Ended() const;

 private:
  const std::vector<TensorBytes> tensors_;
  const int64_t max_chunk_bytes_;
  std::vector<int64_t> received_;  // of each tensor
  int64_t received_bytes_ = 0;
  int64_t total_bytes_ = 0;
};

}  // namespace flashbob::server

#endif  // FLASHBOB_SERVER_SERVICE_UPLOAD_H_
