#include "server/service/call_registry.h"

#include <algorithm>
#include <utility>

namespace flashbob::server {
namespace {

constexpr size_t kMaxText = 300;

void Cut(std::string& text) {
  if (text.size() <= kMaxText) return;
  text.resize(kMaxText);
  text += " ...";
}

}  // namespace

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

std::vector<CallView> CallRegistry::View(TimePoint now, size_t most) const {
  std::vector<CallView> views;
  for (const auto& call : Snapshot()) views.push_back(call->View(now));
  std::sort(views.begin(), views.end(), [](const CallView& a, const CallView& b) { return a.age > b.age; });
  if (views.size() > most) views.resize(most);
  return views;
}

void CallRegistry::AddEnded(EndedCall call) {
  Cut(call.call.problem);
  Cut(call.error);
  MutexLock lock(mutex_);
  ended_.push_front(std::move(call));
  if (ended_.size() > kEndedKept) ended_.pop_back();
}

std::vector<EndedCall> CallRegistry::Ended() const {
  MutexLock lock(mutex_);
  return {ended_.begin(), ended_.end()};
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
