// StopSignals: SIGTERM and SIGINT as events of the main thread.
#ifndef FLASHBOB_SERVER_STOP_SIGNALS_H_
#define FLASHBOB_SERVER_STOP_SIGNALS_H_

#include <csignal>

namespace flashbob::server {

// Make one on the main thread before any other thread starts: it blocks the signals in all threads, so that they are
// delivered nowhere but in Wait. Thread safety: Wake from any thread; Wait from one.
class StopSignals {
 public:
  StopSignals();

  // What ended a wait.
  enum class Event { kStop, kWoken };
  // Waits for SIGTERM, SIGINT or Wake.
  Event Wait();
  void Wake();

 private:
  sigset_t signals_;
};

}  // namespace flashbob::server

#endif  // FLASHBOB_SERVER_STOP_SIGNALS_H_
