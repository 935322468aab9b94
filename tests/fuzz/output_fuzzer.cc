// Fuzzes where the texts of strangers come out: the log, in both formats, and the status page. The first byte says
// which; the rest is the text.
//
// Promises: a log entry is one line of printable text from which the value can be read back. The status page has no
// element and no attribute that a text put there.
#include <array>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <string_view>

#include "server/base/event_log.h"
#include "server/http/status_page.h"
#include "spdlog/sinks/ostream_sink.h"
#include "tests/fuzz/check.h"

namespace flashbob::fuzz {
namespace {

using nlohmann::json;

// One entry, as it is written.
std::string LogLine(server::LogFormat format, const std::string& text) {
  static const auto stream = std::make_shared<std::ostringstream>();
  static server::EventLog logs[] = {
      {server::LogLevel::kInfo, server::LogFormat::kText, std::make_shared<spdlog::sinks::ostream_sink_mt>(*stream)},
      {server::LogLevel::kInfo, server::LogFormat::kJson, std::make_shared<spdlog::sinks::ostream_sink_mt>(*stream)}};
  stream->str("");
  logs[format == server::LogFormat::kJson ? 1 : 0].Write(server::LogLevel::kInfo, "call",
                                                         {{"error", text}, {"number", int64_t{7}}});
  const std::string line = stream->str();
  Check(!line.empty() && line.back() == '\n' && IsPrintable(line.substr(0, line.size() - 1)),
        "an entry is one printable line", line);
  return line.substr(0, line.size() - 1);
}

void TestLog(const std::string& text) {
  // What is no UTF-8 is written with replacements.
  const json expected = json::parse(json(text).dump(-1, ' ', true, json::error_handler_t::replace));
  const json entry = json::parse(LogLine(server::LogFormat::kJson, text), nullptr, false);
  Check(!entry.is_discarded() && entry["error"] == expected && entry["number"] == 7 && entry["message"] == "call",
        "an entry in JSON can be read back", entry.dump());

  const std::string line = LogLine(server::LogFormat::kText, text);
  const size_t begin = line.find(" error=");
  constexpr std::string_view kRest = " number=7";
  Check(begin != std::string::npos && line.size() >= kRest.size() &&
            line.compare(line.size() - kRest.size(), kRest.size(), kRest) == 0,
        "an entry has its fields", line);
  const std::string value = line.substr(begin + 7, line.size() - kRest.size() - begin - 7);
  const bool bare = !value.empty() && value.front() != '"';
  Check(bare ? value == text && value.find_first_of(" \"=") == std::string::npos
             : json::parse(value, nullptr, false) == expected,
        "a value in text can be read back", line);
}

std::string Page(const std::string& text) {
  server::StatusSnapshot status;
  status.server_name = status.version = text;
  status.tenants.push_back({{.name = text}, {}});
  status.devices.push_back({text, text, true, {}});
  server::CallView call;
  call.method = call.peer = call.request_id = call.tenant = call.operation = call.problem = call.state = text;
  call.waits_for = text;
  status.calls.push_back(call);
  status.ended.push_back({call, {}, text, text});
  return server::RenderStatusPage(status);
}

// How often each byte stands in a text. The coverage of this loop says nothing, and took most of a page's time.
using ByteCounts = std::array<int64_t, 256>;
[[clang::no_sanitize("coverage")]] ByteCounts CountBytes(const std::string& text) {
  ByteCounts counts = {};
  int64_t* const count = counts.data();
  const char* const end = text.data() + text.size();
  for (const char* at = text.data(); at != end; ++at) ++count[static_cast<unsigned char>(*at)];
  return counts;
}

void TestPage(const std::string& text) {
  const std::string html = server::EscapeHtml(text);
  Check(IsPrintable(html) && html.find_first_of("<>\"'") == std::string::npos, "HTML is escaped", html);
  static const ByteCounts plain = CountBytes(Page("x"));
  const std::string page = Page(text.empty() ? "y" : text);
  const ByteCounts counts = CountBytes(page);
  for (const unsigned char mark : {'<', '>', '"', '\''}) {
    Check(counts[mark] == plain[mark], "no text puts an element or an attribute on the page", page);
  }
  bool printable = counts['\n'] == plain['\n'];
  for (size_t byte = 0; byte < counts.size(); ++byte) {
    if (byte != '\n' && (byte < 0x20 || byte > 0x7e)) printable = printable && counts[byte] == 0;
  }
  Check(printable, "a page is printable text", page);
}

}  // namespace
}  // namespace flashbob::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 2 == 0) {
    flashbob::fuzz::TestLog(text);
  } else {
    flashbob::fuzz::TestPage(text);
  }
  return 0;
}
