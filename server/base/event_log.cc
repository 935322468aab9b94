#include "server/base/event_log.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "spdlog/logger.h"
#include "spdlog/sinks/stdout_sinks.h"

namespace flashbob::server {
namespace {

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

const char* Name(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kError:
      return "error";
  }
  return "unknown";
}

// JSON's string escapes, which keep a value on one line whatever it holds.
std::string Quoted(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

std::string TextValue(const std::variant<std::string, int64_t, double>& value) {
  if (const auto* text = std::get_if<std::string>(&value)) {
    const bool plain = !text->empty() && std::all_of(text->begin(), text->end(),
                                                     [](char c) { return c > ' ' && c < 127 && c != '"' && c != '='; });
    return plain ? *text : Quoted(*text);
  }
  if (const auto* number = std::get_if<int64_t>(&value)) return absl::StrCat(*number);
  return absl::StrCat(std::get<double>(value));
}

}  // namespace

std::optional<LogFormat> ParseLogFormat(std::string_view name) {
  if (name == "text") return LogFormat::kText;
  if (name == "json") return LogFormat::kJson;
  return std::nullopt;
}

std::optional<LogLevel> ParseLogLevel(std::string_view name) {
  for (LogLevel level : {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarning, LogLevel::kError}) {
    if (name == Name(level)) return level;
  }
  return std::nullopt;
}

EventLog::EventLog(LogLevel level, LogFormat format, spdlog::sink_ptr sink)
    : format_(format), logger_(std::make_unique<spdlog::logger>("flashbob-server", std::move(sink))) {
  logger_->set_level(ToSpdlog(level));
  logger_->flush_on(spdlog::level::trace);
  logger_->set_pattern(format == LogFormat::kJson ? R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z",%v})"
                                                  : "%Y-%m-%dT%H:%M:%S.%e%z %l %v");
}

EventLog::EventLog(LogLevel level, LogFormat format)
    : EventLog(level, format, std::make_shared<spdlog::sinks::stderr_sink_mt>()) {}

EventLog::~EventLog() = default;

void EventLog::Write(LogLevel level, std::string_view message, const LogFields& fields) {
  if (!logger_->should_log(ToSpdlog(level))) return;
  std::string line;
  if (format_ == LogFormat::kText) {
    line = std::string(message);
    for (const auto& [key, value] : fields) absl::StrAppend(&line, " ", std::string(key), "=", TextValue(value));
  } else {
    line = absl::StrCat("\"level\":\"", Name(level), "\",\"message\":", Quoted(message));
    for (const auto& [key, value] : fields) {
      const nlohmann::json json = std::visit([](const auto& v) { return nlohmann::json(v); }, value);
      absl::StrAppend(&line, ",", Quoted(key), ":", json.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace));
    }
  }
  logger_->log(ToSpdlog(level), "{}", line);
}

}  // namespace flashbob::server
