#include "server/config/config_file.h"

#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/config/config.pb.h"

namespace flashbob::server {
namespace {

// Gathers errors as "NAME:LINE:COLUMN: text", both counted from 1.
class Errors final : public google::protobuf::io::ErrorCollector {
 public:
  explicit Errors(std::string name) : name_(std::move(name)) {}
  void AddError(int line, int column, const std::string& message) override {
    absl::StrAppend(&text_, text_.empty() ? "" : "\n", name_, ":", line + 1, ":", column + 1, ": ", message);
  }
  const std::string& text() const { return text_; }

 private:
  const std::string name_;
  std::string text_;
};

}  // namespace

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
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return absl::InvalidArgumentError(absl::StrCat("cannot read config file ", path, ": ", std::strerror(errno)));
  }
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  return ApplyConfigText(path, text, std::move(options));
}

absl::StatusOr<ServerOptions> ApplyConfigText(const std::string& name, const std::string& text, ServerOptions options) {
  Errors errors(name);
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&errors);
  config::ServerConfig config;
  if (!parser.ParseFromString(text, &config)) return absl::InvalidArgumentError(errors.text());

  if (config.has_listen()) options.listen = config.listen();
  if (config.has_metrics_listen()) options.metrics_listen = config.metrics_listen();
  if (config.has_threads()) options.threads = config.threads();
  if (config.has_host_memory_bytes()) options.host_memory_bytes = config.host_memory_bytes();
  if (config.has_max_queued_requests()) options.max_queued_requests = config.max_queued_requests();
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
