#include "server/base/event_log.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "spdlog/sinks/ostream_sink.h"

namespace flashbob::server {
namespace {

std::string Written(LogFormat format, LogLevel least, LogLevel level, const std::string& message,
                    const LogFields& fields) {
  std::ostringstream text;
  EventLog log(least, format, std::make_shared<spdlog::sinks::ostream_sink_mt>(text));
  log.Write(level, message, fields);
  return text.str();
}

TEST(EventLogTest, JsonLineIsOneObjectWithTypedFields) {
  const std::string line =
      Written(LogFormat::kJson, LogLevel::kInfo, LogLevel::kWarning, "call",
              {{"text", std::string("a \"b\"\n\xff{}")}, {"number", int64_t{1} << 40}, {"seconds", 0.25}});
  EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1);
  const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
  ASSERT_TRUE(json.is_object()) << line;
  EXPECT_EQ(json["level"], "warning");
  EXPECT_EQ(json["message"], "call");
  EXPECT_EQ(json["text"], "a \"b\"\n\xef\xbf\xbd{}");
  EXPECT_EQ(json["number"], int64_t{1} << 40);
  EXPECT_EQ(json["seconds"], 0.25);
  EXPECT_TRUE(json.contains("time"));
}

TEST(EventLogTest, TextLineQuotesWhatCouldBeMistaken) {
  const std::string line =
      Written(LogFormat::kText, LogLevel::kInfo, LogLevel::kInfo, "call",
              {{"plain", std::string("a/b:c")}, {"spaced", std::string("a b=c\nd")}, {"empty", std::string()}});
  EXPECT_NE(line.find(" call plain=a/b:c spaced=\"a b=c\\nd\" empty=\"\"\n"), std::string::npos) << line;
}

TEST(EventLogTest, LowerLevelsAreLeftOut) {
  EXPECT_EQ(Written(LogFormat::kText, LogLevel::kWarning, LogLevel::kInfo, "call", {}), "");
  EXPECT_NE(Written(LogFormat::kText, LogLevel::kWarning, LogLevel::kError, "call", {}), "");
}

}  // namespace
}  // namespace flashbob::server
