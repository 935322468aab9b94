// Storage: what calls need that keep tensors or read kept ones.
#ifndef FLASHBOB_SERVER_SERVICE_STORAGE_H_
#define FLASHBOB_SERVER_SERVICE_STORAGE_H_

#include "server/memory/host_memory_pool.h"
#include "server/store/tensor_store.h"

namespace flashbob::server {

// Copies share what they name, which outlives them.
struct Storage {
  TensorStore& store;
  HostMemoryPool& pool;
  int64_t max_chunk_bytes;
  int64_t max_message_bytes;
};

}  // namespace flashbob::server

#endif  // FLASHBOB_SERVER_SERVICE_STORAGE_H_
