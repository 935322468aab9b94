#include "tests/server/testing/tcp_relay.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
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
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
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

void TcpRelay::Silence() {
  SilenceAfter(Way::kToServer, 0);
  SilenceAfter(Way::kToClient, 0);
}

void TcpRelay::SilenceAfter(Way way, int64_t bytes) {
  MutexLock lock(mutex_);
  faults_[static_cast<size_t>(way)].silent_after = bytes;
}

void TcpRelay::ResetAfter(Way way, int64_t bytes) {
  MutexLock lock(mutex_);
  faults_[static_cast<size_t>(way)].reset_after = bytes;
}

void TcpRelay::Delay(std::chrono::milliseconds delay) {
  MutexLock lock(mutex_);
  delay_ = delay;
}

bool TcpRelay::stopping() const {
  MutexLock lock(mutex_);
  return stopping_;
}

int64_t TcpRelay::Allowed(Way way) {
  MutexLock lock(mutex_);
  Faults& faults = faults_[static_cast<size_t>(way)];
  if (faults.reset_after == 0) {
    faults.reset_after = kNever;
    // To dissolve the association of a socket that is connected resets the connection.
    const sockaddr nowhere = {AF_UNSPEC, {}};
    for (int socket : sockets_) connect(socket, &nowhere, sizeof(nowhere));
    return 0;
  }
  return std::min(faults.silent_after, faults.reset_after);
}

void TcpRelay::CountPassed(Way way, int64_t bytes) {
  MutexLock lock(mutex_);
  Faults& faults = faults_[static_cast<size_t>(way)];
  for (int64_t* left : {&faults.silent_after, &faults.reset_after}) {
    if (*left < kNever) *left = std::max<int64_t>(*left - bytes, 0);
  }
}

void TcpRelay::Accept() {
  while (!stopping()) {
    if (!Readable(listener_)) continue;
    const int client = accept(listener_, nullptr, nullptr);
    const int server = socket(AF_INET, SOCK_STREAM, 0);
    const sockaddr_in address = Loopback(target_port_);
    connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
    MutexLock lock(mutex_);
    sockets_.insert(sockets_.end(), {client, server});
    passers_.emplace_back([this, client, server] { Pass(client, server, Way::kToServer); });
    passers_.emplace_back([this, client, server] { Pass(server, client, Way::kToClient); });
  }
}

void TcpRelay::Pass(int from, int to, Way way) {
  std::vector<char> bytes(1 << 16);
  while (!stopping()) {
    const int64_t allowed = std::min<int64_t>(Allowed(way), static_cast<int64_t>(bytes.size()));
    if (allowed == 0) {
      poll(nullptr, 0, kPollMilliseconds);
      continue;
    }
    if (!Readable(from)) continue;
    const ssize_t got = recv(from, bytes.data(), static_cast<size_t>(allowed), 0);
    if (got <= 0) {
      shutdown(to, SHUT_WR);
      return;
    }
    std::chrono::milliseconds delay{0};
    {
      MutexLock lock(mutex_);
      delay = delay_;
    }
    poll(nullptr, 0, static_cast<int>(delay.count()));
    for (ssize_t sent = 0; sent < got;) {
      const ssize_t once = send(to, bytes.data() + sent, static_cast<size_t>(got - sent), MSG_NOSIGNAL);
      if (once <= 0) return;
      sent += once;
    }
    CountPassed(way, got);
  }
}

}  // namespace flashbob::server
