// CallRegistry: the calls in flight, so that they can be cut when idle, shown, and ended when the server stops; and the
// last ones that ended.
#ifndef FLASHBOB_SERVER_SERVICE_CALL_REGISTRY_H_
#define FLASHBOB_SERVER_SERVICE_CALL_REGISTRY_H_

#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/base/mutex.h"
#include "server/base/clock.h"

namespace flashbob::server {

// A call as people see it. Texts may hold what clients sent.
struct CallView {
  std::string method;
  std::string peer;
  std::string request_id;
  std::string tenant;
  std::string operation;
  std::string problem;
  std::string state;      // "receiving"
  std::string waits_for;  // "the client: 4096 of 8192 input bytes have come"
  Duration age = {};
};

struct EndedCall {
  CallView call;  // without state and waits_for; `age` is how long it took
  std::chrono::system_clock::time_point ended;
  std::string code;   // "OK"
  std::string error;  // empty where it is OK
};

// A call from its start until gRPC is done with it. Thread safety: any thread.
class LiveCall {
 public:
  virtual ~LiveCall() = default;
  // Ends the call with `status`, unless it has ended.
  virtual void Abort(const absl::Status& status) = 0;
  // Ends the call where its client has done nothing, though it was its turn, for longer than is allowed.
  virtual void CutIfIdle(TimePoint now) = 0;
  virtual CallView View(TimePoint now) = 0;
};

// Owns the calls. Thread safety: any thread.
class CallRegistry {
 public:
  void Add(const std::shared_ptr<LiveCall>& call);
  // The call may be destroyed within.
  void Remove(const LiveCall* call);

  int64_t size() const;
  // Calls in flight, the oldest first; at most `most` of them.
  std::vector<CallView> View(TimePoint now, size_t most) const;
  // Notes a call that ended; long texts are cut.
  void AddEnded(EndedCall call);
  // The latest first.
  std::vector<EndedCall> Ended() const;
  // Aborts every call in flight with `status`, and every later one when it is added.
  void Close(const absl::Status& status);
  void CutIdle(TimePoint now);
  // Waits until no call is in flight; false where that takes longer than `timeout`.
  bool WaitUntilEmpty(Duration timeout);

 private:
  static constexpr size_t kEndedKept = 32;

  std::vector<std::shared_ptr<LiveCall>> Snapshot() const;

  mutable Mutex mutex_;
  CondVar empty_;
  std::map<const LiveCall*, std::shared_ptr<LiveCall>> calls_ FLASHBOB_GUARDED_BY(mutex_);
  std::deque<EndedCall> ended_ FLASHBOB_GUARDED_BY(mutex_);  // the latest first
  absl::Status closed_ FLASHBOB_GUARDED_BY(mutex_);          // OK: open
};

}  // namespace flashbob::server

#endif  // FLASHBOB_SERVER_SERVICE_CALL_REGISTRY_H_
