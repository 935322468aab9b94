// Backend: what computes for a command, a server or an engine in this process.
//
// Thread safety: Compute from any number of threads at a time.
#ifndef FLASHBOB_CLIENT_CLI_BACKEND_H_
#define FLASHBOB_CLIENT_CLI_BACKEND_H_

#include <CLI/CLI.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "flashbob/server_info.h"
#include "kernels/engine.h"

namespace flashbob::cli {

// How far a computation has come: share done, and of what, as in "computing".
using ProgressCallback = std::function<void(double fraction, const std::string& what)>;

// What is known of a computation that succeeded.
struct Outcome {
  std::string device = {};
  std::chrono::nanoseconds queue{0};    // waiting for the device
  std::chrono::nanoseconds compute{0};  // on the device
};

class Backend {
 public:
  virtual ~Backend() = default;
  // Reads the inputs and writes the wanted outputs, in host memory aligned to kTensorAlignment. `progress` may be
  // empty.
  virtual absl::StatusOr<Outcome> Compute(const Computation& computation, const TensorPointers& tensors,
                                          const ProgressCallback& progress) = 0;
  // An engine in this process knows no limits, tenants or host memory: they are left 0.
  virtual absl::StatusOr<client::ServerInfo> Info() = 0;
  // UNAVAILABLE where the server does not serve now.
  virtual absl::Status Health() = 0;
};

// The flags that choose a backend; the same for every command.
struct BackendFlags {
  std::optional<std::string> server;
  bool tls = false;
  std::optional<std::string> tls_ca;
  std::optional<std::string> tls_certificate;
  std::optional<std::string> tls_key;
  std::optional<std::string> tls_server_name;
  bool embedded = false;
  std::string device = "auto";  // of the embedded engine
  std::optional<double> timeout_seconds;
  bool json = false;
};
void AddBackendFlags(CLI::App& command, BackendFlags& flags);

// UNAVAILABLE where no server is there; INVALID_ARGUMENT or NOT_FOUND for a device that is not there. The server is
// --server, else the environment's FLASHBOB_SERVER, else 127.0.0.1:50051. Its token is the environment's
// FLASHBOB_TOKEN: other users of a machine can see arguments. TLS is spoken where a flag or the environment's
// FLASHBOB_TLS_CA says so.
absl::StatusOr<std::unique_ptr<Backend>> OpenBackend(const BackendFlags& flags);

}  // namespace flashbob::cli

#endif  // FLASHBOB_CLIENT_CLI_BACKEND_H_
