// StopSignals: SIGTERM and SIGINT as events of the main thread.
#ifndef FLASHBOB_SERVER_STOP_SIGNALS_H_
#define FLASHBOB_SERVER_STOP_SIGNALS_H_

#include <chrono>
#include <csignal>
#include <optional>

namespace flashbob::server {

// Make one on the main thread before any other thread starts: it blocks the signals in all threads, so that they are
// delivered nowhere but in these waits. Thread safety: Wake from any thread; Wait and WaitFor from one.
class StopSignals {
 public:
  StopSignals();

  // What ended a wait.
  enum class Event { kStop, kWoken };
  // Waits for SIGTERM, SIGINT or Wake.
  Event Wait();
  // At most so long; nothing where none of them came.
  std::optional<Event> WaitFor(std::chrono::nanoseconds duration);
  void Wake();

 private:
  sigset_t signals_;
};

}  // namespace flashbob::server

#endif  // FLASHBOB_SERVER_STOP_SIGNALS_H_
