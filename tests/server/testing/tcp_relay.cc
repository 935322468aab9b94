#include "tests/server/testing/tcp_relay.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>

namespace flashbob::server {
namespace {

// How often a thread that waits for bytes looks whether it should stop.
constexpr int kPollMilliseconds = 20;

sockaddr_in Loopback(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

bool Readable(int socket) {
  pollfd poll_for = {socket, POLLIN, 0};
  return poll(&poll_for, 1, kPollMilliseconds) > 0;
}

}  // namespace

TcpRelay::TcpRelay(int target_port) : target_port_(target_port) {
  listener_ = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof(address);
  bind(listener_, reinterpret_cast<sockaddr*>(&address), size);
  listen(listener_, 16);
  getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
  port_ = ntohs(address.sin_port);
  acceptor_ = std::thread([this] { Accept(); });
}

TcpRelay::~TcpRelay() {
  stopping_ = true;
  acceptor_.join();
  Cut();
  std::vector<std::thread> passers;
  std::vector<int> sockets;
  {
    MutexLock lock(mutex_);
    passers = std::move(passers_);
    sockets = std::move(sockets_);
  }
  for (std::thread& passer : passers) passer.join();
  for (int socket : sockets) close(socket);
  close(listener_);
}

void TcpRelay::Cut() {
  MutexLock lock(mutex_);
  for (int socket : sockets_) shutdown(socket, SHUT_RDWR);
}

void TcpRelay::Accept() {
  while (!stopping_) {
    if (!Readable(listener_)) continue;
    const int client = accept(listener_, nullptr, nullptr);
    const int server = socket(AF_INET, SOCK_STREAM, 0);
    const sockaddr_in address = Loopback(target_port_);
    connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
    MutexLock lock(mutex_);
    sockets_.insert(sockets_.end(), {client, server});
    passers_.emplace_back([this, client, server] { Pass(client, server); });
    passers_.emplace_back([this, client, server] { Pass(server, client); });
  }
}

void TcpRelay::Pass(int from, int to) {
  std::vector<char> bytes(1 << 16);
  while (!stopping_) {
    if (silent_) {
      poll(nullptr, 0, kPollMilliseconds);
      continue;
    }
    if (!Readable(from)) continue;
    const ssize_t got = recv(from, bytes.data(), bytes.size(), 0);
    if (got <= 0) {
      shutdown(to, SHUT_WR);
      return;
    }
    for (ssize_t sent = 0; sent < got;) {
      const ssize_t once = send(to, bytes.data() + sent, static_cast<size_t>(got - sent), MSG_NOSIGNAL);
      if (once <= 0) return;
      sent += once;
    }
  }
}

}  // namespace flashbob::server
