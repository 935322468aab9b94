// What the metrics port answers to a request, without a socket.
#ifndef FLASHBOB_SERVER_HTTP_HTTP_ANSWER_H_
#define FLASHBOB_SERVER_HTTP_HTTP_ANSWER_H_

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace flashbob::server {

struct HttpResponse {
  int code = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
};

// Gets the path, without a query.
using HttpHandler = std::function<HttpResponse(std::string_view path)>;

inline constexpr size_t kMaxHttpRequestBytes = 8 << 10;

// The bytes to answer with to all that came so far: the page that `handler` makes, or an error. Nothing while the head
// of the request is not complete and may still become so.
std::optional<std::string> AnswerHttp(std::string_view received, const HttpHandler& handler);

}  // namespace flashbob::server

#endif  // FLASHBOB_SERVER_HTTP_HTTP_ANSWER_H_
