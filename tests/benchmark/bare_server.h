// BareServer: flashbob.v1.AttentionService as gRPC alone would have it, to measure the real server against. On the same
// transport, with the same settings, it takes uploads in one of three ways and throws them away, and echoes.
//
//   PutTensors   the call's bearer token says what becomes of a chunk: "discard" (nothing is even read), "parse" (read
//                by protobuf, its bytes then copied into page-locked memory) or "raw" (copied there once, straight from
//                gRPC's slices); answers as many made-up handles as the spec has tensors
//   Compute      reads chunks to the end, then sends chunks of the sizes that the metadata "reply-bytes" lists
//   DeleteTensors, and the health service, as clients expect them
//
// Owns the page-locked memory. Thread safety: construct and destroy on one thread.
#ifndef FLASHBOB_TESTS_BENCHMARK_BARE_SERVER_H_
#define FLASHBOB_TESTS_BENCHMARK_BARE_SERVER_H_

#include <grpcpp/server.h>

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/engine.h"

namespace flashbob {

class BareServer {
 public:
  // Listens on a free port of the loopback. Uploads of more than `bytes` begin again at the memory's start.
  static absl::StatusOr<std::unique_ptr<BareServer>> Start(Engine& engine, size_t bytes);
  ~BareServer();

  int port() const { return port_; }

 private:
  class Service;
  BareServer(Engine& engine, std::byte* memory, size_t bytes);

  Engine& engine_;
  std::byte* const memory_;
  std::unique_ptr<Service> service_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace flashbob

#endif  // FLASHBOB_TESTS_BENCHMARK_BARE_SERVER_H_
