// Request: one computation on its way through the server, from a validated spec until its memory is released.
//
// A request is shared by the call that made it and the scheduler; its state belongs to the scheduler, which alone moves
// it. Its host memory is the caller's to write while kReceiving and to read while kSending; the device's while
// kRunning.
#ifndef FLASHBOB_SERVER_SCHEDULER_REQUEST_H_
#define FLASHBOB_SERVER_SCHEDULER_REQUEST_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "kernels/computation.h"
#include "kernels/engine.h"
#include "server/base/clock.h"
#include "server/memory/host_memory_pool.h"

namespace flashbob::server {

// Where a request stands. A spec that is refused never becomes a request.
//
//   state       holds                       leaves when                                       to
//   kValidated  its plan                    host memory is reserved and allocated             kReceiving
//   kReceiving  all its host memory         every input byte is in it (Scheduler::Ready)      kReady
//   kReady      all its host memory         the device takes it up in time                    kRunning
//   kRunning    host and device memory      the last slice is done                            kSending
//   kSending    its outputs                 they are sent (Scheduler::Release)                kReleased
//   kReleased   nothing                     never
//
// From everywhere it also goes straight to kReleased: when the caller releases it early (cancelled, bad input,
// draining), when its deadline passes, or when the device fails; from kRunning only once the slice that runs has ended.
enum class RequestState : uint8_t { kValidated, kReceiving, kReady, kRunning, kSending, kReleased };
inline constexpr int kNumRequestStates = 6;
const char* Name(RequestState state);  // "receiving"

// Whether the table has this transition.
bool MayMove(RequestState from, RequestState to);

// What a caller of the scheduler hears. Calls come from the scheduler's threads, one at a time, with none of its locks
// held, and must not block. One may still arrive after the request was released: ignore it.
class RequestListener {
 public:
  virtual ~RequestListener() = default;
  // The request had to wait for memory and now has it: its state is kReceiving.
  virtual void OnAdmitted() = 0;
  // The device has done so many of the computation's FLOPs.
  virtual void OnProgress(double done_flops) = 0;
  // OK: the outputs lie in host memory, the state is kSending. Else the request failed and is released.
  virtual void OnComputed(const absl::Status& status) = 0;
};

// Where a request's time went; protocol's Timings.
struct RequestTimings {
  Duration receive = {};
  Duration queue = {};
  Duration compute = {};
};

// The host memory of one request.
struct RequestMemory {
  std::array<HostBuffer, kNumTensorNames> tensors;
  HostBuffer workspace;  // where host memory is device memory
  Reservation transit;   // for the messages that carry its bytes
};

class Request {
 public:
  Request(std::string id, std::unique_ptr<const Plan> plan, TimePoint received, TimePoint deadline)
      : id_(std::move(id)), plan_(std::move(plan)), received_(received), deadline_(deadline) {}

  const std::string& id() const { return id_; }
  const Computation& computation() const { return plan_->computation(); }
  const Plan& plan() const { return *plan_; }
  TimePoint deadline() const { return deadline_; }

  // Host memory of a tensor; null where it is empty.
  std::byte* HostData(TensorName name) const { return memory_.tensors[static_cast<size_t>(name)].data(); }
  // Complete from kSending on.
  const RequestTimings& timings() const { return timings_; }

 private:
  friend class FifoScheduler;

  const std::string id_;
  const std::unique_ptr<const Plan> plan_;
  const TimePoint received_;
  const TimePoint deadline_;
  TimePoint ready_;
  int64_t host_bytes_ = 0;  // what memory_ takes in all

  // Guarded by the scheduler's mutex.
  RequestState state_ = RequestState::kValidated;
  std::shared_ptr<RequestListener> listener_;  // until kReleased

  std::atomic<bool> withdrawn_ = false;  // the caller released it: stop at the next chance
  RequestMemory memory_;
  RequestTimings timings_;
};

}  // namespace flashbob::server

#endif  // FLASHBOB_SERVER_SCHEDULER_REQUEST_H_
