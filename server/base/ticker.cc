#include "server/base/ticker.h"

#include <utility>

namespace flashbob::server {

Ticker::Ticker(std::chrono::nanoseconds interval, std::function<void()> tick)
    : interval_(interval), tick_(std::move(tick)), thread_([this] { Run(); }) {}

Ticker::~Ticker() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
    stopped_.NotifyAll();
  }
  thread_.join();
}

void Ticker::Run() {
  while (true) {
    {
      MutexLock lock(mutex_);
      if (!stop_) stopped_.WaitFor(mutex_, interval_);
      if (stop_) return;
    }
    tick_();
  }
}

}  // namespace flashbob::server
