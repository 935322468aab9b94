// Client: computes exact derivatives of attention on a FlashBoB server.
//
//   auto client = Client::Connect({.server = "localhost:50051"});
//   auto result = client->DoubleBackward({.q = {q, shape}, .k = {k, shape}, .v = {v, shape}, .dout = {dout, shape},
//                                         .uq = {uq, shape}}, {.causal = true});
//   std::span<const float> gq = result->Values<float>("gq");
//
// Errors are absl::Status with the server's code and text; errors.h reads the rest of them. Failures that a retry can
// mend are retried (retry.h). Inputs are read from the caller's memory in pieces; no whole copy is made.
// Thread safety: all methods from any thread. Copies share one connection; calls in flight keep it alive.
#ifndef FLASHBOB_CLIENT_CPP_FLASHBOB_CLIENT_H_
#define FLASHBOB_CLIENT_CPP_FLASHBOB_CLIENT_H_

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "flashbob/attention.h"
#include "flashbob/call.h"
#include "flashbob/errors.h"
#include "flashbob/retry.h"
#include "flashbob/server_info.h"
#include "flashbob/tensor.h"

namespace flashbob::client {

// How a server is reached over TLS. Files are read by Connect.
struct TlsOptions {
  // Authorities, in PEM, that may vouch for the server; empty: those that the system trusts.
  std::string ca_file = {};
  // The client's own certificate chain and its key, in PEM, for a server that asks for them; both or neither.
  std::string certificate_file = {};
  std::string key_file = {};
  // The name that the server's certificate must hold; empty: the host in ClientOptions::server.
  std::string server_name = {};
};

struct ClientOptions {
  // host:port, or any other target that gRPC knows (unix:/path, ipv4:10.0.0.1:50051,10.0.0.2:50051). Where it stands
  // for several servers, calls take turns on those that serve, and a retry goes to the next one; calls with stored
  // tensors stay with one of them.
  std::string server = "127.0.0.1:50051";
  // Nothing: clear text.
  std::optional<TlsOptions> tls = std::nullopt;
  // Names the tenant, where the server knows tenants: sent with every call, readable by the network unless there is
  // TLS. Empty: none is sent.
  std::string token = {};
  // How long Connect waits for the connection; 0: it is made with the first call.
  std::chrono::nanoseconds connect_timeout = std::chrono::seconds(10);
  // Of calls that have none.
  std::chrono::nanoseconds default_timeout = std::chrono::hours(1);
  RetryPolicy retry = {};
  // Bytes of a message that carries a tensor's bytes; at most the server's Limits::max_chunk_bytes and 16 MiB.
  size_t chunk_bytes = size_t{1} << 20;
  // The time by which retries are planned; null: the system's.
  std::shared_ptr<Clock> clock = nullptr;
};

class Client {
 public:
  // INVALID_ARGUMENT for options that make no sense and files that cannot be used; UNAVAILABLE where the server refuses
  // connections or does not answer in time: a server that is not there is not waited for.
  static absl::StatusOr<Client> Connect(ClientOptions options);

  // Computes and waits. Besides the server's errors: INVALID_ARGUMENT, before anything is sent, for names that are no
  // tensors' and sizes that do not fit their shapes.
  absl::StatusOr<Result> Compute(const Request& request, const CallOptions& call = {});
  // The same on a thread of its own. The memory that the request points at must live until the call is done.
  Call ComputeAsync(Request request, CallOptions call = {});

  absl::StatusOr<Result> Forward(const Inputs& inputs, const AttentionOptions& options = {},
                                 const CallOptions& call = {});
  absl::StatusOr<Result> Backward(const Inputs& inputs, const AttentionOptions& options = {},
                                  const CallOptions& call = {});
  absl::StatusOr<Result> DoubleBackward(const Inputs& inputs, const AttentionOptions& options = {},
                                        const CallOptions& call = {});
  absl::StatusOr<Result> Jvp(const Inputs& inputs, const AttentionOptions& options = {}, const CallOptions& call = {});

  // Tensors that stay on the server, for as long after each use as `lease` says (0: as long as the server likes).
  // session.h does this, and brings back what a server lost. Handles come in the order of the tensors, whose names are
  // all different. NOT_FOUND with the reason HANDLE for a handle that is unknown or whose lease is over.
  absl::StatusOr<std::vector<StoredTensor>> PutTensors(const std::vector<NamedTensor>& tensors,
                                                       std::chrono::seconds lease = std::chrono::seconds(0),
                                                       const CallOptions& call = {});
  absl::StatusOr<std::vector<Tensor>> GetTensors(const std::vector<StoredTensor>& tensors,
                                                 const CallOptions& call = {});
  // How many there were to be deleted; those that are gone already are no error.
  absl::StatusOr<int64_t> DeleteTensors(const std::vector<StoredTensor>& tensors, const CallOptions& call = {});

  absl::StatusOr<ServerInfo> GetServerInfo(const CallOptions& call = {});
  // OK where the server, or one of several, says by grpc.health.v1 that it serves; UNAVAILABLE where it says otherwise.
  // Asks once.
  absl::Status CheckHealth(const CallOptions& call = {});

 private:
  class Connection;
  explicit Client(std::shared_ptr<Connection> connection);

  std::shared_ptr<Connection> connection_;
};

}  // namespace flashbob::client

#endif  // FLASHBOB_CLIENT_CPP_FLASHBOB_CLIENT_H_
