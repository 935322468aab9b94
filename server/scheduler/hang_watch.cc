#include "server/scheduler/hang_watch.h"

namespace flashbob::server {

uint64_t HangWatch::Begin() {
  MutexLock lock(mutex_);
  looked_at_.emplace(next_, 0);
  return next_++;
}

void HangWatch::End(uint64_t ticket) {
  MutexLock lock(mutex_);
  looked_at_.erase(ticket);
}

bool HangWatch::Look() {
  MutexLock lock(mutex_);
  bool hangs = false;
  for (auto& [ticket, looks] : looked_at_) hangs = ++looks == looks_ || hangs;
  return hangs;
}

}  // namespace flashbob::server
