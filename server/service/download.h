// Download: cuts the tensors of a result into chunks, or puts them into the result itself.
#ifndef FLASHBOB_SERVER_SERVICE_DOWNLOAD_H_
#define FLASHBOB_SERVER_SERVICE_DOWNLOAD_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "flashbob/v1/attention_service.pb.h"
#include "server/service/tensor_bytes.h"

namespace flashbob::server {

// Not thread safe. The tensors' memory must outlive the calls of Next.
class Download {
 public:
  Download(std::vector<TensorBytes> tensors, int64_t chunk_bytes);

  bool done() const { return tensor_ == tensors_.size(); }
  // The next chunk. Only where not done.
  struct Chunk {
    size_t tensor_index;
    int64_t byte_offset;
    std::span<const std::byte> data;
  };
  Chunk Next();
  // Fills the first tensors, of at most `max_bytes` in all, into the result that describes them, and returns their
  // bytes. Only before the first chunk.
  int64_t FillIn(v1::ComputeResult& result, int64_t max_bytes);

 private:
  void SkipFinished();

  const std::vector<TensorBytes> tensors_;
  const int64_t chunk_bytes_;
  size_t tensor_ = 0;
  int64_t offset_ = 0;
};

}  // namespace flashbob::server

#endif  // FLASHBOB_SERVER_SERVICE_DOWNLOAD_H_
