// TcpRelay: a TCP port that passes everything on to another, until it is told to fall silent or to cut its connections:
// a network that fails.
#ifndef FLASHBOB_TESTS_SERVER_TESTING_TCP_RELAY_H_
#define FLASHBOB_TESTS_SERVER_TESTING_TCP_RELAY_H_

#include <atomic>
#include <thread>
#include <vector>

#include "kernels/base/mutex.h"

namespace flashbob::server {

// Thread safety: construct and destroy on one thread; Silence and Cut from any.
class TcpRelay {
 public:
  // Listens on a free port of 127.0.0.1 and passes on to `target_port` there.
  explicit TcpRelay(int target_port);
  ~TcpRelay();

  int port() const { return port_; }
  // Reads and writes no more, but keeps its connections: the peer is gone without a word.
  void Silence() { silent_ = true; }
  // Closes all connections: the peer's process has died.
  void Cut();

 private:
  void Accept();
  void Pass(int from, int to);

  const int target_port_;
  int listener_ = -1;
  int port_ = 0;
  std::atomic<bool> silent_ = false;
  std::atomic<bool> stopping_ = false;
  Mutex mutex_;
  std::vector<int> sockets_ FLASHBOB_GUARDED_BY(mutex_);
  std::vector<std::thread> passers_ FLASHBOB_GUARDED_BY(mutex_);
  std::thread acceptor_;
};

}  // namespace flashbob::server

#endif  // FLASHBOB_TESTS_SERVER_TESTING_TCP_RELAY_H_
