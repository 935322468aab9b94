// TcpRelay: a TCP port that passes everything on to another, until it is told to fall silent, to take its time or to
// cut its connections: a network that fails.
#ifndef FLASHBOB_TESTS_SERVER_TESTING_TCP_RELAY_H_
#define FLASHBOB_TESTS_SERVER_TESTING_TCP_RELAY_H_

#include <array>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "kernels/base/mutex.h"

namespace flashbob::server {

// Thread safety: construct and destroy on one thread; all else from any.
class TcpRelay {
 public:
  enum class Way : uint8_t { kToServer, kToClient };

  // Listens on a free port of 127.0.0.1 and passes on to `target_port` there.
  explicit TcpRelay(int target_port);
  ~TcpRelay();

  int port() const { return port_; }
  // Reads and writes no more, but keeps its connections: the peer is gone without a word.
  void Silence();
  // The same in one direction, once so many more bytes have passed in it.
  void SilenceAfter(Way way, int64_t bytes);
  // Closes all connections: the peer's process has died.
  void Cut();
  // Resets all connections (RST), once so many more bytes have passed in this direction; those that come later live.
  void ResetAfter(Way way, int64_t bytes);
  // Passes each piece, of 64 KiB at most, so much later than it came.
  void Delay(std::chrono::milliseconds delay);

 private:
  static constexpr int64_t kNever = int64_t{1} << 60;
  struct Faults {
    int64_t silent_after = kNever;  // bytes from now on
    int64_t reset_after = kNever;
  };

  void Accept();
  void Pass(int from, int to, Way way);
  bool stopping() const FLASHBOB_EXCLUDES(mutex_);
  // How many bytes may pass now: none where it is silent or a reset is due, which it does.
  int64_t Allowed(Way way) FLASHBOB_EXCLUDES(mutex_);
  void CountPassed(Way way, int64_t bytes) FLASHBOB_EXCLUDES(mutex_);

  const int target_port_;
  int listener_ = -1;
  int port_ = 0;
  mutable Mutex mutex_;
  bool stopping_ FLASHBOB_GUARDED_BY(mutex_) = false;
  std::chrono::milliseconds delay_ FLASHBOB_GUARDED_BY(mutex_){0};
  std::array<Faults, 2> faults_ FLASHBOB_GUARDED_BY(mutex_);  // by Way
  std::vector<int> sockets_ FLASHBOB_GUARDED_BY(mutex_);
  std::vector<std::thread> passers_ FLASHBOB_GUARDED_BY(mutex_);
  std::thread acceptor_;
};

}  // namespace flashbob::server

#endif  // FLASHBOB_TESTS_SERVER_TESTING_TCP_RELAY_H_
