// Fuzzes the requests of the metrics port: the input is what a peer sends.
//
// Promises: nothing is answered before the head is whole or too long; how the bytes are cut into pieces changes
// nothing; the answer is one well-formed HTTP/1.1 response without a byte of the request in its head; the handler is
// asked once at most, with a path that stands in the request, has no query and no space.
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "server/http/http_answer.h"
#include "tests/fuzz/check.h"

namespace flashbob::fuzz {
namespace {

using server::HttpResponse;

constexpr std::string_view kEnd = "\r\n\r\n";

HttpResponse Page(std::string_view path) {
  if (path == "/metrics") return {200, "text/plain; version=0.0.4; charset=utf-8", "# a page\r\n\r\nof two parts\n"};
  return {404, "text/plain; charset=utf-8", "no such page\n"};
}

void CheckAnswer(const std::string& answer, bool with_body) {
  const size_t end = answer.find(kEnd);
  Check(end != std::string::npos && answer.rfind("HTTP/1.1 ", 0) == 0, "an answer is HTTP/1.1", answer);
  const int code = std::atoi(answer.c_str() + 9);
  Check(code == 200 || code == 400 || code == 404 || code == 405 || code == 431, "an answer has one of our codes",
        answer);
  for (const char c : std::string_view(answer).substr(0, end)) {
    Check(c == '\r' || c == '\n' || (c >= 0x20 && c < 0x7f), "the head is text", answer);
  }
  constexpr std::string_view kLength = "\r\nContent-Length: ";
  const size_t length = answer.find(kLength);
  Check(length < end, "an answer has a length", answer);
  const size_t bytes = std::strtoull(answer.c_str() + length + kLength.size(), nullptr, 10);
  Check(answer.size() - end - kEnd.size() == (with_body ? bytes : 0), "the length is that of the body", answer);
  Check(answer.find("\r\nConnection: close\r\n") < end && answer.find("default-src 'none'") < end,
        "the connection ends, and no page runs a script", answer);
}

void TestOne(std::string_view request) {
  std::vector<std::string> paths;
  const server::HttpHandler handler = [&](std::string_view path) {
    paths.emplace_back(path);
    return Page(path);
  };
  const std::optional<std::string> answer = server::AnswerHttp(request, handler);
  const size_t end = request.find(kEnd);
  const bool whole = end != std::string_view::npos;
  Check(answer.has_value() == (whole || request.size() > server::kMaxHttpRequestBytes),
        "a request is answered when it is whole or too long");
  if (!answer.has_value()) {
    Check(paths.empty(), "no page is made for half a request");
    return;
  }
  CheckAnswer(*answer, request.rfind("HEAD ", 0) != 0 || answer->rfind("HTTP/1.1 400", 0) == 0 ||
                           answer->rfind("HTTP/1.1 431", 0) == 0);
  Check(paths.size() <= 1, "one page a request");
  for (const std::string& path : paths) {
    Check(request.find(path) != std::string_view::npos && path.find_first_of("? ") == std::string::npos,
          "the path is the request's", path);
  }
  if (!whole || end > server::kMaxHttpRequestBytes) return;
  // In two pieces, as a socket may give them.
  const size_t cut = request.size() > 1 ? static_cast<unsigned char>(request.back()) % request.size() : 0;
  const std::optional<std::string> early = server::AnswerHttp(request.substr(0, cut), handler);
  Check(early.has_value() == (cut >= end + kEnd.size()), "an answer waits for the whole head");
  Check(!early.has_value() || early == answer, "what follows the head changes nothing");
}

}  // namespace
}  // namespace flashbob::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  flashbob::fuzz::TestOne({reinterpret_cast<const char*>(data), size});
  return 0;
}
