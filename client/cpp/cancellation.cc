#include "flashbob/cancellation.h"

#include <map>
#include <utility>

#include "kernels/base/mutex.h"

namespace flashbob::client {

struct CancellationState {
  Mutex mutex;
  CondVar changed;
  bool cancelled FLASHBOB_GUARDED_BY(mutex) = false;
  int next_id FLASHBOB_GUARDED_BY(mutex) = 0;
  std::map<int, std::function<void()>> callbacks FLASHBOB_GUARDED_BY(mutex);
};

Cancellation::Cancellation() : state_(std::make_shared<CancellationState>()) {}

void Cancellation::Cancel() {
  CancellationState& state = *state_;
  // The callbacks run under the lock: a registration that is gone has waited for them.
  const MutexLock lock(state.mutex);
  if (state.cancelled) return;
  state.cancelled = true;
  for (const auto& [id, callback] : state.callbacks) callback();
  state.callbacks.clear();
  state.changed.NotifyAll();
}

bool Cancellation::cancelled() const {
  const MutexLock lock(state_->mutex);
  return state_->cancelled;
}

bool Cancellation::WaitFor(std::chrono::nanoseconds duration) const {
  CancellationState& state = *state_;
  const auto end = std::chrono::steady_clock::now() + duration;
  const MutexLock lock(state.mutex);
  while (!state.cancelled) {
    const auto left = end - std::chrono::steady_clock::now();
    if (left <= std::chrono::nanoseconds(0)) break;
    state.changed.WaitFor(state.mutex, left);
  }
  return state.cancelled;
}

Cancellation::Registration::Registration(const Cancellation& cancellation, std::function<void()> on_cancel)
    : state_(cancellation.state_) {
  CancellationState& state = *state_;
  const MutexLock lock(state.mutex);
  id_ = state.next_id++;
  if (state.cancelled) {
    on_cancel();
  } else {
    state.callbacks[id_] = std::move(on_cancel);
  }
}

Cancellation::Registration::~Registration() {
  CancellationState& state = *state_;
  const MutexLock lock(state.mutex);
  state.callbacks.erase(id_);
}

}  // namespace flashbob::client
