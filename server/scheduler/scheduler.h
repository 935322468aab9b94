// Scheduler: takes computations in, finds them memory and a device, and says when they are done.
//
//   Submit -> (OnAdmitted) -> caller fills the inputs -> Ready -> OnProgress... -> OnComputed -> caller sends ->
//   Release
//
// Thread safety: any thread, also, but for Ready, with the caller's own lock held; no call waits for memory, nor, but
// for Ready, for a device.
#ifndef FLASHBOB_SERVER_SCHEDULER_SCHEDULER_H_
#define FLASHBOB_SERVER_SCHEDULER_SCHEDULER_H_

#include <array>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/memory/device_memory_pool.h"
#include "server/scheduler/request.h"

namespace flashbob::server {

struct Submission {
  std::string request_id;
  Computation computation;
  TimePoint deadline = kNoDeadline;
  std::shared_ptr<RequestListener> listener;
  std::shared_ptr<Tenant> tenant = nullptr;  // who asks; null: nobody in particular, without a quota
  StoredInputs stored = {};                  // inputs that need not be sent
};

struct Submitted {
  std::shared_ptr<Request> request;
  bool admitted = false;  // it has its memory already: OnAdmitted will not be called
};

// What is ahead of a request that joins the end of the queue now.
struct QueueEstimate {
  int64_t requests = 0;
  Duration wait = {};
};

// One request as the scheduler sees it.
struct RequestView {
  RequestState state = RequestState::kReleased;
  int64_t host_bytes = 0;
  int slices_done = 0;
  int slices = 0;
  std::string device;  // that it is on, once it is on one
};

// One device as the scheduler sees it.
struct DeviceUse {
  const Engine* engine = nullptr;
  DeviceMemoryPool::Use memory;  // held by requests; none where host memory is device memory
};

class Scheduler {
 public:
  virtual ~Scheduler() = default;

  // Takes a computation in, or refuses it:
  //   UNIMPLEMENTED        UNSUPPORTED_PROBLEM  no device computes it
  //   FAILED_PRECONDITION  TOO_LARGE            it never fits
  //   RESOURCE_EXHAUSTED   QUEUE_FULL           as many as are allowed wait already
  //   RESOURCE_EXHAUSTED   QUOTA                it is more than its tenant may hold now
  //   DEADLINE_EXCEEDED    DEADLINE             the estimate is past its deadline
  //   UNAVAILABLE          DRAINING
  virtual absl::StatusOr<Submitted> Submit(Submission submission) = 0;

  // Every input byte that is not stored is in host memory. A short request may be computed within, on a device that is
  // idle: then OnComputed is called within, too.
  virtual void Ready(const std::shared_ptr<Request>& request) = 0;

  // The caller is done with the request, whatever its state: what it holds is freed, at once or after the slice that
  // runs. Calling it again does nothing.
  virtual void Release(const std::shared_ptr<Request>& request) = 0;

  virtual QueueEstimate Ahead() const = 0;

  virtual RequestView View(const Request& request) const = 0;

  // Requests in each state now, by RequestState.
  virtual std::array<int64_t, kNumRequestStates> CountByState() const = 0;

  virtual std::vector<DeviceUse> Devices() const = 0;

  // Call it once a second. A device that has been at one piece of work, which takes some hundredths of a second, at
  // more than a minute of such calls hangs: it is lost, as one that fails.
  virtual void LookForHangs() = 0;

  // Refuses every later Submit with UNAVAILABLE, DRAINING.
  virtual void Drain() = 0;
};

}  // namespace flashbob::server

#endif  // FLASHBOB_SERVER_SCHEDULER_SCHEDULER_H_
