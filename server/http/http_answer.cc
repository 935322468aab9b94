#include "server/http/http_answer.h"

#include "absl/strings/str_cat.h"

namespace flashbob::server {
namespace {

constexpr std::string_view kEndOfHead = "\r\n\r\n";

const char* ReasonPhrase(int code) {
  switch (code) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 431:
      return "Request Header Fields Too Large";
    default:
      return "Service Unavailable";
  }
}

// Pages run no script and load nothing, whatever they hold.
std::string ToText(const HttpResponse& response, bool with_body) {
  return absl::StrCat("HTTP/1.1 ", response.code, " ", ReasonPhrase(response.code),
                      "\r\nContent-Type: ", response.content_type, "\r\nContent-Length: ", response.body.size(),
                      "\r\nConnection: close\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n"
                      "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'\r\n\r\n",
                      with_body ? response.body : "");
}

std::string Plain(int code, const char* text) {
  HttpResponse response;
  response.code = code;
  response.body = text;
  return ToText(response, true);
}

}  // namespace

std::optional<std::string> AnswerHttp(std::string_view received, const HttpHandler& handler) {
  if (received.find(kEndOfHead) == std::string_view::npos) {
    if (received.size() <= kMaxHttpRequestBytes) return std::nullopt;
    return Plain(431, "the request has more than 8 KiB\n");
  }
  const std::string_view line = received.substr(0, received.find("\r\n"));
  const size_t first = line.find(' ');
  const size_t second = first == std::string_view::npos ? first : line.find(' ', first + 1);
  if (second == std::string_view::npos || line.substr(second + 1).substr(0, 7) != "HTTP/1.") {
    return Plain(400, "not an HTTP/1 request\n");
  }
  const std::string_view method = line.substr(0, first);
  if (method != "GET" && method != "HEAD") return Plain(405, "only GET and HEAD are served\n");
  std::string_view path = line.substr(first + 1, second - first - 1);
  path = path.substr(0, path.find('?'));
  return ToText(handler(path), method == "GET");
}

}  // namespace flashbob::server
