#include "server/config/config_file.h"

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/config/config.pb.h"
#include "server/config/text_format.h"

namespace flashbob::server {

absl::StatusOr<LogLevel> LogLevelOf(const std::string& name) {
  const std::optional<LogLevel> level = ParseLogLevel(name);
  if (level.has_value()) return *level;
  return absl::InvalidArgumentError(
      absl::StrCat("log_level is \"", name, "\"; it must be debug, info, warning or error"));
}

absl::StatusOr<LogFormat> LogFormatOf(const std::string& name) {
  const std::optional<LogFormat> format = ParseLogFormat(name);
  if (format.has_value()) return *format;
  return absl::InvalidArgumentError(absl::StrCat("log_format is \"", name, "\"; it must be text or json"));
}

absl::StatusOr<ServerOptions> ApplyConfigFile(const std::string& path, ServerOptions options) {
  FLASHBOB_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  return ApplyConfigText(path, text, std::move(options));
}

absl::StatusOr<ServerOptions> ApplyConfigText(const std::string& name, const std::string& text, ServerOptions options) {
  config::ServerConfig config;
  FLASHBOB_RETURN_IF_ERROR(ParseTextFormat(name, text, config));

  if (config.has_listen()) options.listen = config.listen();
  if (config.has_metrics_listen()) options.metrics_listen = config.metrics_listen();
  if (config.has_devices()) options.devices = config.devices();
  if (config.has_threads()) options.threads = config.threads();
  if (config.has_grpc_threads()) options.grpc_threads = config.grpc_threads();
  if (config.has_host_memory_bytes()) options.host_memory_bytes = config.host_memory_bytes();
  if (config.has_device_memory_bytes()) options.device_memory_bytes = config.device_memory_bytes();
  if (config.has_store_memory_bytes()) options.store_memory_bytes = config.store_memory_bytes();
  if (config.has_max_lease_seconds()) options.max_lease_seconds = config.max_lease_seconds();
  if (config.has_server_name()) options.server_name = config.server_name();
  if (config.has_tenants_file()) options.tenants_file = config.tenants_file();
  if (config.has_listen_unix()) options.listen_unix = config.listen_unix();
  if (config.has_tls_certificate()) options.tls.certificate = config.tls_certificate();
  if (config.has_tls_key()) options.tls.key = config.tls_key();
  if (config.has_tls_client_ca()) options.tls.client_ca = config.tls_client_ca();
  if (config.has_tls_client_certificates()) options.tls_client_certificates = config.tls_client_certificates();
  if (config.has_allow_insecure()) options.allow_insecure = config.allow_insecure();
  if (config.has_max_queued_requests()) options.max_queued_requests = config.max_queued_requests();
  if (config.has_split_seconds()) options.split_seconds = config.split_seconds();
  if (config.has_max_chunk_bytes()) options.max_chunk_bytes = config.max_chunk_bytes();
  if (config.has_grace_seconds()) options.grace_seconds = config.grace_seconds();
  if (config.has_idle_upload_seconds()) options.idle_upload_seconds = config.idle_upload_seconds();
  if (config.has_port_file()) options.port_file = config.port_file();
  if (config.has_log_level()) {
    FLASHBOB_ASSIGN_OR_RETURN(options.log_level, LogLevelOf(config.log_level()));
  }
  if (config.has_log_format()) {
    FLASHBOB_ASSIGN_OR_RETURN(options.log_format, LogFormatOf(config.log_format()));
  }
  return options;
}

}  // namespace flashbob::server
