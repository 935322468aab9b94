// CallRegistry: the calls in flight, so that they can be cut when idle and ended when the server stops.
#ifndef FLASHBOB_SERVER_SERVICE_CALL_REGISTRY_H_
#define FLASHBOB_SERVER_SERVICE_CALL_REGISTRY_H_

#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "kernels/base/mutex.h"
#include "server/base/clock.h"

namespace flashbob::server {

// A call from its start until gRPC is done with it. Thread safety: any thread.
class LiveCall {
 public:
  virtual ~LiveCall() = default;
  // Ends the call with `status`, unless it has ended.
  virtual void Abort(const absl::Status& status) = 0;
  // Ends the call where its client has done nothing, though it was its turn, for longer than is allowed.
  virtual void CutIfIdle(TimePoint now) = 0;
};

// Owns the calls. Thread safety: any thread.
class CallRegistry {
 public:
  void Add(const std::shared_ptr<LiveCall>& call);
  // The call may be destroyed within.
  void Remove(const LiveCall* call);

  int64_t size() const;
  // Aborts every call in flight with `status`, and every later one when it is added.
  void Close(const absl::Status& status);
  void CutIdle(TimePoint now);
  // Waits until no call is in flight; false where that takes longer than `timeout`.
  bool WaitUntilEmpty(Duration timeout);

 private:
  std::vector<std::shared_ptr<LiveCall>> Snapshot() const;

  mutable Mutex mutex_;
  CondVar empty_;
  std::map<const LiveCall*, std::shared_ptr<LiveCall>> calls_ FLASHBOB_GUARDED_BY(mutex_);
  absl::Status closed_ FLASHBOB_GUARDED_BY(mutex_);  // OK: open
};

}  // namespace flashbob::server

#endif  // FLASHBOB_SERVER_SERVICE_CALL_REGISTRY_H_
