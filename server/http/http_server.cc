#include "server/http/http_server.h"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/config/server_options.h"

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

HttpResponse Plain(int code, const char* text) {
  HttpResponse response;
  response.code = code;
  response.body = text;
  return response;
}

absl::StatusOr<int> Listen(const std::string& address) {
  FLASHBOB_ASSIGN_OR_RETURN(const HostPort parsed, ParseHostPort(address));
  std::string host = parsed.host;
  if (host.front() == '[') host = host.substr(1, host.size() - 2);
  addrinfo hints = {};
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), absl::StrCat(parsed.port).c_str(), &hints, &found);
  if (error != 0) return absl::UnavailableError(gai_strerror(error));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owned(found, freeaddrinfo);
  const int listener = socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  const int on = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (listener < 0 || bind(listener, found->ai_addr, found->ai_addrlen) != 0 || listen(listener, SOMAXCONN) != 0) {
    const absl::Status status = absl::UnavailableError(std::strerror(errno));
    if (listener >= 0) close(listener);
    return status;
  }
  return listener;
}

int PortOf(int listener) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  if (getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port
                                             : reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string& address, Handler handler) {
  const absl::StatusOr<int> listener = Listen(address);
  if (!listener.ok()) {
    return absl::UnavailableError(absl::StrCat("cannot serve metrics on ", address, "; is the port taken? (",
                                               std::string(listener.status().message()), ")"));
  }
  const int wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake < 0) {
    close(*listener);
    return absl::UnavailableError(absl::StrCat("no event descriptor: ", std::strerror(errno)));
  }
  return std::unique_ptr<HttpServer>(new HttpServer(*listener, wake, PortOf(*listener), std::move(handler)));
}

HttpServer::HttpServer(int listener, int wake, int port, Handler handler)
    : listener_(listener), wake_(wake), port_(port), handler_(std::move(handler)), thread_([this] { Run(); }) {}

HttpServer::~HttpServer() {
  eventfd_write(wake_, 1);
  thread_.join();
  for (const Connection& connection : connections_) close(connection.socket);
  close(listener_);
  close(wake_);
}

void HttpServer::Run() {
  std::vector<pollfd> polled;
  while (true) {
    polled = {{wake_, POLLIN, 0}, {listener_, POLLIN, 0}};
    for (const Connection& connection : connections_) {
      polled.push_back({connection.socket, static_cast<short>(connection.answered ? POLLOUT : POLLIN), 0});
    }
    // Woken now and then to cut those whose time is over.
    if (poll(polled.data(), polled.size(), connections_.empty() ? -1 : 500) < 0 && errno != EINTR) return;
    if (polled[0].revents != 0) return;
    const TimePoint now = SteadyClock().Now();
    size_t index = 2;
    for (auto connection = connections_.begin(); connection != connections_.end(); ++index) {
      const bool ready = polled[index].revents != 0;
      if (now >= connection->until || (ready && !Continue(*connection))) {
        close(connection->socket);
        connection = connections_.erase(connection);
      } else {
        ++connection;
      }
    }
    if (polled[1].revents != 0) Accept();
  }
}

void HttpServer::Accept() {
  const int accepted = accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (accepted < 0) {
    // Out of descriptors, say: the listener stays readable, and this thread must not spin.
    if (errno == EMFILE || errno == ENFILE) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    return;
  }
  if (connections_.size() >= kMaxConnections) {
    close(connections_.front().socket);
    connections_.pop_front();
  }
  Connection connection;
  connection.socket = accepted;
  connection.until = SteadyClock().Now() + kMaxTime;
  connections_.push_back(std::move(connection));
}

bool HttpServer::Continue(Connection& connection) {
  if (!connection.answered) {
    char bytes[4096];
    const ssize_t got = recv(connection.socket, bytes, sizeof(bytes), 0);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got == 0) return false;
    connection.request.append(bytes, static_cast<size_t>(got));
    const bool whole = connection.request.find(kEndOfHead) != std::string::npos;
    if (!whole && connection.request.size() <= kMaxRequestBytes) return true;
    connection.answer =
        whole ? Answer(connection.request) : ToText(Plain(431, "the request has more than 8 KiB\n"), true);
    connection.request = std::string();
    connection.answered = true;
  }
  const ssize_t sent = send(connection.socket, connection.answer.data(), connection.answer.size(), MSG_NOSIGNAL);
  if (sent < 0) return errno == EAGAIN || errno == EINTR;
  connection.answer.erase(0, static_cast<size_t>(sent));
  return !connection.answer.empty();
}

std::string HttpServer::Answer(std::string_view request) const {
  const std::string_view line = request.substr(0, request.find("\r\n"));
  const size_t first = line.find(' ');
  const size_t second = first == std::string_view::npos ? first : line.find(' ', first + 1);
  if (second == std::string_view::npos || line.substr(second + 1).substr(0, 7) != "HTTP/1.") {
    return ToText(Plain(400, "not an HTTP/1 request\n"), true);
  }
  const std::string_view method = line.substr(0, first);
  if (method != "GET" && method != "HEAD") return ToText(Plain(405, "only GET and HEAD are served\n"), true);
  std::string_view path = line.substr(first + 1, second - first - 1);
  path = path.substr(0, path.find('?'));
  return ToText(handler_(path), method == "GET");
}

}  // namespace flashbob::server
