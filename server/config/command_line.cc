#include "server/config/command_line.h"

#include <CLI/CLI.hpp>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/config/config_file.h"

namespace flashbob::server {
namespace {

constexpr char kDescription[] =
    "Serves exact derivatives of softmax attention (forward, backward, double backward, JVP) over gRPC.";

constexpr char kExamples[] = R"(
Examples:
  flashbob-server
      serve on 127.0.0.1:50051, metrics at http://127.0.0.1:9464/metrics
  flashbob-server --listen 0.0.0.0:50051 --tls-certificate server.pem --tls-key server.key --tenants-file tenants.txt
      to the network, over TLS, for tenants with tokens
  flashbob-server --listen 127.0.0.1:0 --port-file /tmp/port --metrics-listen off
      take a free port and write its number to a file
  flashbob-server --devices cuda:2,cuda:3 --device-memory-bytes 64GiB
      serve two of this machine's GPUs and leave a part of them to others
  flashbob-server --config server.textproto --max-queued-requests 64
      settings from a file; flags override it

SIGTERM or SIGINT: refuse new requests, finish what runs within --grace-seconds, exit 0; a second one: exit at once.
Exit codes: 0 stopped as told, 1 failed, 2 bad configuration.)";

// What the flags set.
struct Flags {
  std::optional<std::string> config;
  std::optional<std::string> listen;
  std::optional<std::string> listen_unix;
  std::optional<std::string> tls_certificate;
  std::optional<std::string> tls_key;
  std::optional<std::string> tls_client_ca;
  std::optional<std::string> tls_client_certificates;
  bool allow_insecure = false;
  std::optional<std::string> metrics_listen;
  std::optional<std::string> devices;
  std::optional<int> threads;
  std::optional<int> grpc_threads;
  std::optional<std::string> host_memory_bytes;
  std::optional<std::string> device_memory_bytes;
  std::optional<std::string> store_memory_bytes;
  std::optional<double> max_lease_seconds;
  std::optional<std::string> server_name;
  std::optional<std::string> tenants_file;
  std::optional<int64_t> max_queued_requests;
  std::optional<double> split_seconds;
  std::optional<std::string> max_chunk_bytes;
  std::optional<double> grace_seconds;
  std::optional<double> idle_upload_seconds;
  std::optional<std::string> port_file;
  std::optional<std::string> log_level;
  std::optional<std::string> log_format;
};

void AddFlags(CLI::App& app, Flags& flags) {
  app.add_option("--config", flags.config, "Settings in protobuf text format (server/config/config.proto)")
      ->type_name("FILE");
  app.add_option("--listen", flags.listen, "Where to serve gRPC, or off; port 0 takes a free one [127.0.0.1:50051]")
      ->type_name("HOST:PORT");
  app.add_option("--listen-unix", flags.listen_unix, "A unix domain socket to serve gRPC on besides")
      ->type_name("PATH");
  app.add_option("--tls-certificate", flags.tls_certificate,
                 "The server's certificate chain, PEM; read when it changes")
      ->type_name("FILE");
  app.add_option("--tls-key", flags.tls_key, "Its private key, PEM")->type_name("FILE");
  app.add_option("--tls-client-ca", flags.tls_client_ca, "Accept client certificates of these authorities, PEM")
      ->type_name("FILE");
  app.add_option("--tls-client-certificates", flags.tls_client_certificates,
                 "required, or optional: a bearer token does as well [required]")
      ->type_name("WHICH");
  app.add_flag("--allow-insecure", flags.allow_insecure, "Allow clear text on an address that other machines reach");
  app.add_option("--metrics-listen", flags.metrics_listen, "Where to serve /metrics, or off [127.0.0.1:9464]")
      ->type_name("HOST:PORT");
  app.add_option("--devices", flags.devices,
                 "auto: every GPU, the CPU where there is none; all: every GPU; cpu; or cuda:0,cuda:1 [auto]")
      ->type_name("LIST");
  app.add_option("--threads", flags.threads, "Threads of the CPU engine; 0: one for each core [0]")->type_name("N");
  app.add_option("--grpc-threads", flags.grpc_threads,
                 "Threads of gRPC's that serve, 2 to 16; 0: 2, and all of them while those are busy [0]")
      ->type_name("N");
  app.add_option("--host-memory-bytes", flags.host_memory_bytes,
                 "Host memory for inputs and outputs of requests, as in 4GiB; 0: half of what there is [0]")
      ->type_name("SIZE");
  app.add_option("--device-memory-bytes", flags.device_memory_bytes,
                 "Memory of each GPU for requests; 0: what is free, less a sixteenth [0]")
      ->type_name("SIZE");
  app.add_option("--store-memory-bytes", flags.store_memory_bytes,
                 "Of the host memory, the most that stored tensors may take; 0: half [0]")
      ->type_name("SIZE");
  app.add_option("--max-lease-seconds", flags.max_lease_seconds, "Longest lease of a stored tensor without use [86400]")
      ->type_name("S");
  app.add_option("--server-name", flags.server_name, "Names this server in the handles of its tensors [flashbob]")
      ->type_name("NAME");
  app.add_option("--tenants-file", flags.tenants_file, "Tenants in protobuf text format (server/auth/tenants.proto)")
      ->type_name("FILE");
  app.add_option("--max-queued-requests", flags.max_queued_requests, "Requests that may wait at once [256]")
      ->type_name("N");
  app.add_option("--split-seconds", flags.split_seconds,
                 "Split requests of so much estimated time over the GPUs; 0: all that can be; inf: none [0.02]")
      ->type_name("S");
  app.add_option("--max-chunk-bytes", flags.max_chunk_bytes, "Largest chunk in a message [4MiB]")->type_name("SIZE");
  app.add_option("--grace-seconds", flags.grace_seconds,
                 "End within so long of SIGTERM; requests may go on until shortly before [30]")
      ->type_name("S");
  app.add_option("--idle-upload-seconds", flags.idle_upload_seconds,
                 "A client whose turn it is may do nothing for so long [30]")
      ->type_name("S");
  app.add_option("--port-file", flags.port_file, "Write the gRPC port to this file once serving")->type_name("PATH");
  app.add_option("--log-level", flags.log_level, "debug, info, warning or error [info]")->type_name("LEVEL");
  app.add_option("--log-format", flags.log_format, "text or json, on stderr [text]")->type_name("FORMAT");
}

template <typename T>
void Override(T& setting, const std::optional<T>& flag) {
  if (flag.has_value()) setting = *flag;
}

absl::Status OverrideBytes(const char* name, int64_t& setting, const std::optional<std::string>& flag) {
  if (!flag.has_value()) return absl::OkStatus();
  const absl::StatusOr<int64_t> bytes = ParseBytes(*flag);
  if (!bytes.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": ", std::string(bytes.status().message())));
  }
  setting = *bytes;
  return absl::OkStatus();
}

absl::StatusOr<ServerOptions> OptionsOf(const Flags& flags) {
  ServerOptions options;
  if (flags.config.has_value()) {
    FLASHBOB_ASSIGN_OR_RETURN(options, ApplyConfigFile(*flags.config, std::move(options)));
  }
  Override(options.listen, flags.listen);
  Override(options.listen_unix, flags.listen_unix);
  Override(options.tls.certificate, flags.tls_certificate);
  Override(options.tls.key, flags.tls_key);
  Override(options.tls.client_ca, flags.tls_client_ca);
  Override(options.tls_client_certificates, flags.tls_client_certificates);
  options.allow_insecure |= flags.allow_insecure;
  Override(options.metrics_listen, flags.metrics_listen);
  Override(options.devices, flags.devices);
  Override(options.threads, flags.threads);
  Override(options.grpc_threads, flags.grpc_threads);
  Override(options.max_lease_seconds, flags.max_lease_seconds);
  Override(options.server_name, flags.server_name);
  Override(options.tenants_file, flags.tenants_file);
  Override(options.max_queued_requests, flags.max_queued_requests);
  Override(options.split_seconds, flags.split_seconds);
  Override(options.grace_seconds, flags.grace_seconds);
  Override(options.idle_upload_seconds, flags.idle_upload_seconds);
  Override(options.port_file, flags.port_file);
  FLASHBOB_RETURN_IF_ERROR(OverrideBytes("host_memory_bytes", options.host_memory_bytes, flags.host_memory_bytes));
  FLASHBOB_RETURN_IF_ERROR(
      OverrideBytes("device_memory_bytes", options.device_memory_bytes, flags.device_memory_bytes));
  FLASHBOB_RETURN_IF_ERROR(OverrideBytes("store_memory_bytes", options.store_memory_bytes, flags.store_memory_bytes));
  FLASHBOB_RETURN_IF_ERROR(OverrideBytes("max_chunk_bytes", options.max_chunk_bytes, flags.max_chunk_bytes));
  if (flags.log_level.has_value()) {
    FLASHBOB_ASSIGN_OR_RETURN(options.log_level, LogLevelOf(*flags.log_level));
  }
  if (flags.log_format.has_value()) {
    FLASHBOB_ASSIGN_OR_RETURN(options.log_format, LogFormatOf(*flags.log_format));
  }
  return Resolve(std::move(options));
}

}  // namespace

CommandLine ParseCommandLine(int argc, const char* const* argv, const std::string& version) {
  CLI::App app(kDescription, "flashbob-server");
  app.footer(kExamples);
  app.set_version_flag("--version", "flashbob-server " + version);
  Flags flags;
  AddFlags(app, flags);
  CommandLine command_line;
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {  // also how CLI11 reports --help and --version
    std::ostringstream text;
    command_line.exit_code = app.exit(error, text, text) == 0 ? 0 : kExitBadConfiguration;
    command_line.text = text.str();
    return command_line;
  }
  absl::StatusOr<ServerOptions> options = OptionsOf(flags);
  if (options.ok()) {
    command_line.options = *std::move(options);
  } else {
    command_line.exit_code = kExitBadConfiguration;
    command_line.text = absl::StrCat("flashbob-server: ", std::string(options.status().message()), "\n");
  }
  return command_line;
}

}  // namespace flashbob::server
