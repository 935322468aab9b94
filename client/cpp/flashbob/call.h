// CallOptions, Progress, Call: one call of Client, how it is watched and how it is ended.
#ifndef FLASHBOB_CLIENT_CPP_FLASHBOB_CALL_H_
#define FLASHBOB_CLIENT_CPP_FLASHBOB_CALL_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "flashbob/attention.h"
#include "flashbob/cancellation.h"

namespace flashbob::client {

// How far a call has come. A try that is repeated begins again with kUploading.
struct Progress {
  enum class Phase : uint8_t {
    kUploading,    // done, total: bytes of inputs handed to the network
    kQueued,       // admitted: done 0, total the FLOPs of the call
    kComputing,    // done, total: FLOPs
    kDownloading,  // done, total: bytes of outputs
  };
  Phase phase = Phase::kUploading;
  double done = 0;
  double total = 0;
  int64_t queue_position = 0;                  // kQueued: requests ahead of this one
  std::chrono::nanoseconds estimated_wait{0};  // kQueued: how long those are expected to take
};

struct CallOptions {
  // Over all tries and pauses; left out: ClientOptions::default_timeout.
  std::optional<std::chrono::nanoseconds> timeout = std::nullopt;
  // Ends the call with CANCELLED; left out: nothing does (but Call::Cancel).
  std::optional<Cancellation> cancellation = std::nullopt;
  // Called on the thread that makes the call, in order. It holds the call up: be quick.
  std::function<void(const Progress&)> progress = {};
};

// A call under way, on a thread of its own. The destructor cancels it where it is not done, and waits.
// Thread safety: all methods from any thread, but Take from one.
class Call {
 public:
  struct State;
  explicit Call(std::shared_ptr<State> state);
  Call(Call&& other) noexcept;
  Call& operator=(Call&& other) noexcept;
  ~Call();

  // Ends it soon with CANCELLED, where it is not done; does not wait.
  void Cancel();
  bool done() const;
  // Waits at most so long; whether it is done.
  bool WaitFor(std::chrono::nanoseconds duration) const;
  // Waits. The reference holds until Take, or as long as this Call.
  const absl::StatusOr<Result>& Wait() const;
  // Waits and hands over the result: once.
  absl::StatusOr<Result> Take();
  // Calls a function with the result when done, on the call's thread, or at once where it is. Must come before Take.
  void OnDone(std::function<void(const absl::StatusOr<Result>&)> callback);

 private:
  void Finish();

  std::shared_ptr<State> state_;
};

}  // namespace flashbob::client

#endif  // FLASHBOB_CLIENT_CPP_FLASHBOB_CALL_H_
