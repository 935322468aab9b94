#include "server/config/server_options.h"

#include <arpa/inet.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <fstream>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace flashbob::server {
namespace {

// Bytes of memory of this machine, or of the container where that has a limit.
int64_t MachineMemoryBytes() {
  int64_t bytes = int64_t{sysconf(_SC_PHYS_PAGES)} * int64_t{sysconf(_SC_PAGE_SIZE)};
  for (const char* file : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    int64_t limit = 0;
    // "max" is no number and leaves the machine's.
    if (std::ifstream(file) >> limit && limit > 0) bytes = std::min(bytes, limit);
  }
  return bytes;
}

template <typename T>
absl::Status CheckRange(const char* name, T value, T least, T most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " is ", value, "; it must be ", least, " to ", most));
}

absl::Status CheckListen(const char* name, const std::string& value) {
  const absl::StatusOr<HostPort> parsed = ParseHostPort(value);
  if (parsed.ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is \"", value, "\": ", std::string(parsed.status().message())));
}

absl::Status CheckListeners(ServerOptions& options) {
  if (options.listen == "off") options.listen.clear();
  if (!options.listen.empty()) FLASHBOB_RETURN_IF_ERROR(CheckListen("listen", options.listen));
  if (options.listen.empty() && options.listen_unix.empty()) {
    return absl::InvalidArgumentError("listen is \"off\" and listen_unix is not set: nobody could connect");
  }
  // What a socket's address holds.
  if (options.listen_unix.size() > 107) {
    return absl::InvalidArgumentError(
        absl::StrCat("listen_unix has ", options.listen_unix.size(), " characters; a socket's path has at most 107"));
  }
  const TlsPaths& tls = options.tls;
  if (tls.certificate.empty() != tls.key.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("tls_certificate is \"", tls.certificate, "\" and tls_key \"",
                                                   tls.key, "\"; each needs the other"));
  }
  if (tls.certificate.empty() && !tls.client_ca.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("tls_client_ca is \"", tls.client_ca, "\", but there is no tls_certificate"));
  }
  if (options.tls_client_certificates != "required" && options.tls_client_certificates != "optional") {
    return absl::InvalidArgumentError(absl::StrCat("tls_client_certificates is \"", options.tls_client_certificates,
                                                   "\"; it must be required or optional"));
  }
  if (options.listen.empty() || !tls.certificate.empty() || options.allow_insecure) return absl::OkStatus();
  FLASHBOB_ASSIGN_OR_RETURN(const HostPort address, ParseHostPort(options.listen));
  if (IsLoopback(address.host)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("listen is \"", options.listen,
                   "\", which other machines reach, in clear text: set tls_certificate "
                   "and tls_key (--tls-certificate, --tls-key), or allow_insecure (--allow-insecure)"));
}

}  // namespace

bool IsLoopback(std::string_view host) {
  if (host == "localhost" || host == "[::1]") return true;
  in_addr address;
  return inet_pton(AF_INET, std::string(host).c_str(), &address) == 1 && (ntohl(address.s_addr) >> 24) == 127;
}

int64_t MaxMessageBytes(const ServerOptions& options) {
  return std::max(options.max_chunk_bytes, kMaxSpecBytes) + kMessageOverheadBytes;
}

int64_t WireMemoryBytes(const ServerOptions& options) {
  // A message for each stream that may upload at once, and half as much again for what is on its way; of the usual
  // 1 MiB, not of the largest, but never less than a few of those.
  constexpr int64_t kUsualMessageBytes = 1 << 20;
  return std::max(options.max_queued_requests * kUsualMessageBytes * 3 / 2, 16 * MaxMessageBytes(options));
}

absl::StatusOr<HostPort> ParseHostPort(std::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) {
    return absl::InvalidArgumentError("it must be HOST:PORT, as in 127.0.0.1:50051 or [::]:50051");
  }
  const std::string_view host = text.substr(0, colon);
  if (host.find(':') != std::string_view::npos && (host.front() != '[' || host.back() != ']')) {
    return absl::InvalidArgumentError("an IPv6 host goes in brackets, as in [::1]:50051");
  }
  const std::string_view digits = text.substr(colon + 1);
  int port = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (error != std::errc() || end != digits.data() + digits.size() || port < 0 || port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("port \"", std::string(digits), "\" is not a number from 0 to 65535"));
  }
  return HostPort{std::string(host), port};
}

absl::StatusOr<int64_t> ParseBytes(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  constexpr std::pair<std::string_view, int> kUnits[] = {{"", 0},     {"B", 0},    {"KiB", 10},
                                                         {"MiB", 20}, {"GiB", 30}, {"TiB", 40}};
  const auto found =
      std::find_if(std::begin(kUnits), std::end(kUnits), [&](const auto& known) { return known.first == unit; });
  if (error != std::errc() || number < 0 || found == std::end(kUnits)) {
    return absl::InvalidArgumentError(absl::StrCat("\"", std::string(text),
                                                   "\" is not a size; write bytes, or a number with KiB, MiB, GiB or "
                                                   "TiB, as in 4GiB"));
  }
  if (number > (std::numeric_limits<int64_t>::max() >> found->second)) {
    return absl::InvalidArgumentError(absl::StrCat("\"", std::string(text), "\" is more than 63 bits hold"));
  }
  return number << found->second;
}

absl::StatusOr<ServerOptions> Resolve(ServerOptions options) {
  FLASHBOB_RETURN_IF_ERROR(CheckListeners(options));
  if (options.metrics_listen == "off") options.metrics_listen.clear();
  if (!options.metrics_listen.empty()) {
    FLASHBOB_RETURN_IF_ERROR(CheckListen("metrics_listen", options.metrics_listen));
  }
  FLASHBOB_RETURN_IF_ERROR(CheckRange("threads", options.threads, 0, 4096));
  if (options.grpc_threads != 0) {  // gRPC itself never has fewer than two
    FLASHBOB_RETURN_IF_ERROR(CheckRange("grpc_threads", options.grpc_threads, 2, 16));
  }
  if (options.host_memory_bytes == 0) options.host_memory_bytes = MachineMemoryBytes() / 2;
  FLASHBOB_RETURN_IF_ERROR(
      CheckRange<int64_t>("host_memory_bytes", options.host_memory_bytes, 1 << 20, int64_t{1} << 50));
  FLASHBOB_RETURN_IF_ERROR(
      CheckRange<int64_t>("device_memory_bytes", options.device_memory_bytes, 0, int64_t{1} << 50));
  if (options.store_memory_bytes == 0) options.store_memory_bytes = options.host_memory_bytes / 2;
  FLASHBOB_RETURN_IF_ERROR(
      CheckRange<int64_t>("store_memory_bytes", options.store_memory_bytes, 1, options.host_memory_bytes));
  FLASHBOB_RETURN_IF_ERROR(CheckRange("max_lease_seconds", options.max_lease_seconds, 1.0, 1e9));
  const bool named = !options.server_name.empty() && options.server_name.size() <= 63 &&
                     std::all_of(options.server_name.begin(), options.server_name.end(),
                                 [](unsigned char c) { return std::isalnum(c) != 0 || c == '-'; });
  if (!named) {
    return absl::InvalidArgumentError(
        absl::StrCat("server_name is \"", options.server_name, "\"; it must be 1 to 63 letters, digits or '-'"));
  }
  FLASHBOB_RETURN_IF_ERROR(CheckRange<int64_t>("max_queued_requests", options.max_queued_requests, 1, 10000));
  FLASHBOB_RETURN_IF_ERROR(
      CheckRange("split_seconds", options.split_seconds, 0.0, std::numeric_limits<double>::infinity()));
  FLASHBOB_RETURN_IF_ERROR(CheckRange<int64_t>("max_chunk_bytes", options.max_chunk_bytes, 1 << 20, 1 << 30));
  for (const auto& [name, seconds, least] :
       {std::tuple{"grace_seconds", options.grace_seconds, 0.0},
        std::tuple{"idle_upload_seconds", options.idle_upload_seconds, 0.1},
        std::tuple{"keepalive_seconds", options.keepalive_seconds, 1.0},
        std::tuple{"keepalive_timeout_seconds", options.keepalive_timeout_seconds, 0.1}}) {
    FLASHBOB_RETURN_IF_ERROR(CheckRange(name, seconds, least, 86400.0));
  }
  return options;
}

}  // namespace flashbob::server
