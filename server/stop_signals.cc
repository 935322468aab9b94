#include "server/stop_signals.h"

#include <pthread.h>
#include <unistd.h>

#include <initializer_list>

namespace flashbob::server {
namespace {

// Sent to the process itself by Wake.
constexpr int kWakeSignal = SIGUSR1;

}  // namespace

StopSignals::StopSignals() {
  sigemptyset(&signals_);
  for (int signal : {SIGTERM, SIGINT, kWakeSignal}) sigaddset(&signals_, signal);
  pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
}

StopSignals::Event StopSignals::Wait() {
  int signal = 0;
  while (sigwait(&signals_, &signal) != 0) {
  }
  return signal == kWakeSignal ? Event::kWoken : Event::kStop;
}

void StopSignals::Wake() { kill(getpid(), kWakeSignal); }

}  // namespace flashbob::server
