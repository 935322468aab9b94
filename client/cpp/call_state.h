// Call::State: what a Call and the thread that makes it share. Internal to the library.
#ifndef FLASHBOB_CLIENT_CPP_CALL_STATE_H_
#define FLASHBOB_CLIENT_CPP_CALL_STATE_H_

#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "flashbob/call.h"
#include "kernels/base/mutex.h"

namespace flashbob::client {

// Thread safety: all methods from any thread, but Start and Join from the one that owns the Call.
struct Call::State : std::enable_shared_from_this<Call::State> {
 public:
  using Callback = std::function<void(const absl::StatusOr<Result>&)>;

  // Runs the call on a thread; once.
  void Start(std::function<absl::StatusOr<Result>(const Cancellation&)> work);
  void Join();

  // The result: null where it is not there yet.
  absl::StatusOr<Result>* Find();
  absl::StatusOr<Result>* Wait();
  bool WaitFor(std::chrono::nanoseconds duration);
  void OnDone(Callback callback);

  Cancellation cancellation;

 private:
  void Set(absl::StatusOr<Result> result);

  std::thread thread_;
  Mutex mutex_;
  CondVar done_;
  std::shared_ptr<absl::StatusOr<Result>> result_ FLASHBOB_GUARDED_BY(mutex_);
  std::vector<Callback> callbacks_ FLASHBOB_GUARDED_BY(mutex_);
};

}  // namespace flashbob::client

#endif  // FLASHBOB_CLIENT_CPP_CALL_STATE_H_
