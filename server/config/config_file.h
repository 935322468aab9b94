// Reads a configuration file: server/config/config.proto in text format.
#ifndef FLASHBOB_SERVER_CONFIG_CONFIG_FILE_H_
#define FLASHBOB_SERVER_CONFIG_CONFIG_FILE_H_

#include <string>

#include "absl/status/statusor.h"
#include "server/config/server_options.h"

namespace flashbob::server {

// `options` with what `path` sets. Errors of syntax name line and column, others the field and its value; ranges are
// Resolve's to check.
absl::StatusOr<ServerOptions> ApplyConfigFile(const std::string& path, ServerOptions options);

// The same for text; `name` stands for the file in errors.
absl::StatusOr<ServerOptions> ApplyConfigText(const std::string& name, const std::string& text, ServerOptions options);

// The values of log_level and log_format, in the file and in flags.
absl::StatusOr<LogLevel> LogLevelOf(const std::string& name);
absl::StatusOr<LogFormat> LogFormatOf(const std::string& name);

}  // namespace flashbob::server

#endif  // FLASHBOB_SERVER_CONFIG_CONFIG_FILE_H_
