#include "server/service/call_registry.h"

#include <utility>

namespace flashbob::server {

void CallRegistry::Add(const std::shared_ptr<LiveCall>& call) {
  absl::Status closed;
  {
    MutexLock lock(mutex_);
    calls_.emplace(call.get(), call);
    closed = closed_;
  }
  if (!closed.ok()) call->Abort(closed);
}

void CallRegistry::Remove(const LiveCall* call) {
  std::shared_ptr<LiveCall> removed;  // destroyed after the lock is gone
  MutexLock lock(mutex_);
  const auto found = calls_.find(call);
  if (found == calls_.end()) return;
  removed = std::move(found->second);
  calls_.erase(found);
  if (calls_.empty()) empty_.NotifyAll();
}

int64_t CallRegistry::size() const {
  MutexLock lock(mutex_);
  return static_cast<int64_t>(calls_.size());
}

void CallRegistry::Close(const absl::Status& status) {
  {
    MutexLock lock(mutex_);
    closed_ = status;
  }
  for (const auto& call : Snapshot()) call->Abort(status);
}

void CallRegistry::CutIdle(TimePoint now) {
  for (const auto& call : Snapshot()) call->CutIfIdle(now);
}

bool CallRegistry::WaitUntilEmpty(Duration timeout) {
  const auto until = std::chrono::steady_clock::now() + timeout;
  MutexLock lock(mutex_);
  while (!calls_.empty()) {
    const Duration left = until - std::chrono::steady_clock::now();
    if (left <= Duration(0)) return false;
    empty_.WaitFor(mutex_, left);
  }
  return true;
}

std::vector<std::shared_ptr<LiveCall>> CallRegistry::Snapshot() const {
  MutexLock lock(mutex_);
  std::vector<std::shared_ptr<LiveCall>> calls;
  for (const auto& [key, call] : calls_) calls.push_back(call);
  return calls;
}

}  // namespace flashbob::server
