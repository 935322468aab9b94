#include "server/stop_signals.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <initializer_list>

namespace flashbob::server {
namespace {

// Sent to the process itself by Wake.
constexpr int kWakeSignal = SIGUSR1;

StopSignals::Event EventOf(int signal) {
  return signal == kWakeSignal ? StopSignals::Event::kWoken : StopSignals::Event::kStop;
}

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
  return EventOf(signal);
}

std::optional<StopSignals::Event> StopSignals::WaitFor(std::chrono::nanoseconds duration) {
  const auto end = std::chrono::steady_clock::now() + duration;
  while (true) {
    const auto left = std::max(end - std::chrono::steady_clock::now(), std::chrono::nanoseconds(0));
    timespec timeout = {};
    timeout.tv_sec = static_cast<time_t>(left / std::chrono::seconds(1));
    timeout.tv_nsec = static_cast<long>((left % std::chrono::seconds(1)).count());
    const int signal = sigtimedwait(&signals_, nullptr, &timeout);
    if (signal >= 0) return EventOf(signal);
    if (errno != EINTR) return std::nullopt;
  }
}

void StopSignals::Wake() { kill(getpid(), kWakeSignal); }

}  // namespace flashbob::server
