#include "flashbob/call.h"

#include <utility>

#include "client/cpp/call_state.h"

namespace flashbob::client {

Call::Call(std::shared_ptr<State> state) : state_(std::move(state)) {}
Call::Call(Call&& other) noexcept = default;

Call& Call::operator=(Call&& other) noexcept {
  if (this != &other) {
    Finish();
    state_ = std::move(other.state_);
  }
  return *this;
}

Call::~Call() { Finish(); }

void Call::Finish() {
  if (state_ == nullptr) return;  // moved from
  state_->cancellation.Cancel();
  state_->Join();
  state_.reset();
}

void Call::Cancel() { state_->cancellation.Cancel(); }

bool Call::done() const { return state_->Find() != nullptr; }

bool Call::WaitFor(std::chrono::nanoseconds duration) const { return state_->WaitFor(duration); }

const absl::StatusOr<Result>& Call::Wait() const { return *state_->Wait(); }

absl::StatusOr<Result> Call::Take() { return std::move(*state_->Wait()); }

void Call::OnDone(std::function<void(const absl::StatusOr<Result>&)> callback) { state_->OnDone(std::move(callback)); }

void Call::State::Start(std::function<absl::StatusOr<Result>(const Cancellation&)> work) {
  // The thread keeps the state, and by it the result, alive for its own callbacks.
  auto self = shared_from_this();
  try {
    thread_ = std::thread([self, work = std::move(work)] { self->Set(work(self->cancellation)); });
  } catch (const std::system_error& error) {
    Set(absl::ResourceExhaustedError(std::string("no thread for the call: ") + error.what()));
  }
}

void Call::State::Join() {
  if (!thread_.joinable()) return;
  // A callback of the call may drop the last handle on it.
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

absl::StatusOr<Result>* Call::State::Find() {
  const MutexLock lock(mutex_);
  return result_.get();
}

absl::StatusOr<Result>* Call::State::Wait() {
  const MutexLock lock(mutex_);
  while (result_ == nullptr) done_.Wait(mutex_);
  return result_.get();
}

bool Call::State::WaitFor(std::chrono::nanoseconds duration) {
  const auto end = std::chrono::steady_clock::now() + duration;
  const MutexLock lock(mutex_);
  while (result_ == nullptr) {
    const auto left = end - std::chrono::steady_clock::now();
    if (left <= std::chrono::nanoseconds(0)) return false;
    done_.WaitFor(mutex_, left);
  }
  return true;
}

void Call::State::OnDone(Callback callback) {
  {
    const MutexLock lock(mutex_);
    if (result_ == nullptr) {
      callbacks_.push_back(std::move(callback));
      return;
    }
  }
  callback(*Find());
}

void Call::State::Set(absl::StatusOr<Result> result) {
  const auto owned = std::make_shared<absl::StatusOr<Result>>(std::move(result));
  std::vector<Callback> callbacks;
  // Callbacks come before waiters: whoever waits may take the result away.
  while (true) {
    {
      const MutexLock lock(mutex_);
      callbacks.swap(callbacks_);
      if (callbacks.empty()) {
        result_ = owned;
        done_.NotifyAll();
        return;
      }
    }
    for (const Callback& callback : callbacks) callback(*owned);
    callbacks.clear();
  }
}

}  // namespace flashbob::client
