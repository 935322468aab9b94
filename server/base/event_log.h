// EventLog: the server's log, one event a line, as text (`message key=value ...`) or as one JSON object.
#ifndef FLASHBOB_SERVER_BASE_EVENT_LOG_H_
#define FLASHBOB_SERVER_BASE_EVENT_LOG_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "spdlog/common.h"

namespace spdlog {
class logger;
}

namespace flashbob::server {

enum class LogFormat : uint8_t { kText, kJson };
enum class LogLevel : uint8_t { kDebug, kInfo, kWarning, kError };

std::optional<LogFormat> ParseLogFormat(std::string_view name);  // "text", "json"
std::optional<LogLevel> ParseLogLevel(std::string_view name);    // "debug", "info", "warning", "error"

using LogFields = std::vector<std::pair<std::string_view, std::variant<std::string, int64_t, double>>>;

// Thread safety: any thread.
class EventLog {
 public:
  // Writes to `sink`, which is shared with nobody else that sets its pattern.
  EventLog(LogLevel level, LogFormat format, spdlog::sink_ptr sink);
  // Writes to stderr.
  EventLog(LogLevel level, LogFormat format);
  ~EventLog();

  void Write(LogLevel level, std::string_view message, const LogFields& fields = {});

 private:
  const LogFormat format_;
  const std::unique_ptr<spdlog::logger> logger_;
};

}  // namespace flashbob::server

#endif  // FLASHBOB_SERVER_BASE_EVENT_LOG_H_
