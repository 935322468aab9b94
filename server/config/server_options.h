// ServerOptions: the server's settings, read from a file and flags and checked before anything starts.
#ifndef FLASHBOB_SERVER_CONFIG_SERVER_OPTIONS_H_
#define FLASHBOB_SERVER_CONFIG_SERVER_OPTIONS_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/auth/tls_files.h"
#include "server/base/event_log.h"

namespace flashbob::server {

// server/config/config.proto says what each is.
struct ServerOptions {
  std::string listen = "127.0.0.1:50051";         // empty: none
  std::string listen_unix;                        // path of a socket; empty: none
  std::string metrics_listen = "127.0.0.1:9464";  // empty: no metrics
  std::string devices = "auto";
  int threads = 0;
  int grpc_threads = 0;
  int64_t host_memory_bytes = 0;  // after Resolve never 0
  int64_t device_memory_bytes = 0;
  int64_t store_memory_bytes = 0;  // after Resolve never 0
  double max_lease_seconds = 86400;
  std::string server_name = "flashbob";
  std::string tenants_file;  // empty: everybody is one tenant
  TlsPaths tls;              // no certificate: clear text
  std::string tls_client_certificates = "required";
  bool allow_insecure = false;
  int64_t max_queued_requests = 256;
  double split_seconds = 0.02;
  int64_t max_chunk_bytes = 4 << 20;
  double grace_seconds = 30;
  double idle_upload_seconds = 30;
  LogLevel log_level = LogLevel::kInfo;
  LogFormat log_format = LogFormat::kText;
  std::string port_file;  // empty: none

  // A silent peer is found after keepalive_seconds + keepalive_timeout_seconds.
  double keepalive_seconds = 15;
  double keepalive_timeout_seconds = 10;
};

inline constexpr int64_t kMaxMetadataBytes = 16 << 10;
// What a message may hold besides a chunk's bytes.
inline constexpr int64_t kMessageOverheadBytes = 64 << 10;
// Room for the spec of a packed batch of as many sequences as are taken, whatever the chunk size.
inline constexpr int64_t kMaxSpecBytes = 2 << 20;

// Largest message that a server with these options reads.
int64_t MaxMessageBytes(const ServerOptions& options);

// The most that gRPC may hold of what all connections sent and nobody took yet: besides host_memory_bytes.
int64_t WireMemoryBytes(const ServerOptions& options);

// HOST:PORT of a listening address, with the port 0 to 65535.
struct HostPort {
  std::string host;
  int port = 0;
};
absl::StatusOr<HostPort> ParseHostPort(std::string_view text);

// Whether only this machine reaches it.
bool IsLoopback(std::string_view host);

// "4GiB", "512MiB", "64KiB", "4294967296": whole bytes, binary units.
absl::StatusOr<int64_t> ParseBytes(std::string_view text);

// Checks every setting, with an error that names the setting and its value, and fills in what depends on the machine.
absl::StatusOr<ServerOptions> Resolve(ServerOptions options);

}  // namespace flashbob::server

#endif  // FLASHBOB_SERVER_CONFIG_SERVER_OPTIONS_H_
