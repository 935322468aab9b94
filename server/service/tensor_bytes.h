// TensorBytes: where one tensor's bytes lie in host memory.
#ifndef FLASHBOB_SERVER_SERVICE_TENSOR_BYTES_H_
#define FLASHBOB_SERVER_SERVICE_TENSOR_BYTES_H_

#include <cstddef>
#include <cstdint>

#include "kernels/tensor_name.h"

namespace flashbob::server {

struct TensorBytes {
  TensorName name;
  std::byte* data;  // null where bytes is 0
  int64_t bytes;
};

}  // namespace flashbob::server

#endif  // FLASHBOB_SERVER_SERVICE_TENSOR_BYTES_H_
