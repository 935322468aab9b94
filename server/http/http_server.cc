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

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string& address, HttpHandler handler) {
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

HttpServer::HttpServer(int listener, int wake, int port, HttpHandler handler)
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
    std::optional<std::string> answer = AnswerHttp(connection.request, handler_);
    if (!answer.has_value()) return true;
    connection.answer = *std::move(answer);
    connection.request = std::string();
    connection.answered = true;
  }
  const ssize_t sent = send(connection.socket, connection.answer.data(), connection.answer.size(), MSG_NOSIGNAL);
  if (sent < 0) return errno == EAGAIN || errno == EINTR;
  connection.answer.erase(0, static_cast<size_t>(sent));
  return !connection.answer.empty();
}

}  // namespace flashbob::server
