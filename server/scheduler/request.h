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
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "kernels/computation.h"
#include "kernels/engine.h"
#include "server/auth/tenant.h"
#include "server/base/clock.h"
#include "server/memory/host_memory_pool.h"

namespace flashbob::server {

// Where a request stands. A spec that is refused never becomes a request.
//
//   state       holds                       leaves when                                       to
//   kValidated  its plan                    host memory is reserved and allocated             kReceiving
//   kReceiving  all its host memory         every input byte is in it (Scheduler::Ready)      kReady
//   kReady      all its host memory         a device has memory for it and its turn is near   kRunning
//   kRunning    host and device memory      its last slice is done, its outputs copied back   kSending
//   kSending    its outputs                 they are sent (Scheduler::Release)                kReleased
//   kReleased   nothing                     never
//
// From everywhere it also goes straight to kReleased: when the caller releases it early (cancelled, bad input,
// draining), when its deadline passes, or when the device fails; from kRunning only once the slice that runs has ended.
//
// One that is split is kRunning from when the first of its parts has device memory until the outputs of the last one
// are copied back; where it ends early, parts that nothing works for free their device memory at once, the others after
// the slice that runs, and the last of them its host memory.
enum class RequestState : uint8_t { kValidated, kReceiving, kReady, kRunning, kSending, kReleased };
inline constexpr int kNumRequestStates = 6;
const char* Name(RequestState state);  // "receiving"

// Whether the table has this transition.
bool MayMove(RequestState from, RequestState to);

// What a caller of the scheduler hears. Calls come from the scheduler's threads, with none of its locks held, and must
// not block; those of OnProgress from several at once where a request is split. One may still arrive after the request
// was released: ignore it.
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

// Inputs that lie in the tensor store, by TensorName; null for all other tensors.
using StoredInputs = std::array<std::shared_ptr<const HostBuffer>, kNumTensorNames>;

// The host memory of one request.
struct RequestMemory {
  std::array<HostBuffer, kNumTensorNames> tensors;  // but for those that are stored
  StoredInputs stored;
  HostBuffer workspace;  // where host memory is device memory
  Reservation transit;   // for the messages that carry its bytes

  // Null where the tensor is empty.
  std::byte* Data(TensorName name) const {
    const auto index = static_cast<size_t>(name);
    return stored[index] != nullptr ? stored[index]->data() : tensors[index].data();
  }
};

struct Part;

class Request : public std::enable_shared_from_this<Request> {
 public:
  Request(std::string id, std::unique_ptr<const Plan> plan, TimePoint received, TimePoint deadline);
  ~Request();

  const std::string& id() const { return id_; }
  const Computation& computation() const { return plan_->computation(); }
  const Plan& plan() const { return *plan_; }
  TimePoint deadline() const { return deadline_; }

  // Host memory of a tensor; null where it is empty.
  std::byte* HostData(TensorName name) const { return memory_.Data(name); }
  // While kSending: an output, to be kept for longer than the request, with the share of the tenant's quota that it
  // has.
  std::pair<HostBuffer, TenantHold> TakeOutput(TensorName name);
  // Complete from kSending on.
  const RequestTimings& timings() const { return timings_; }
  // Name of the device that computed it, or of those, "cuda:0, cuda:1"; from kSending on.
  const std::string& device_name() const { return device_name_; }

 private:
  friend class FairScheduler;

  const std::string id_;
  const std::unique_ptr<const Plan> plan_;
  const TimePoint received_;
  const TimePoint deadline_;
  std::shared_ptr<Tenant> tenant_;  // null: nobody's
  int64_t host_bytes_ = 0;          // what memory_ takes in all
  TimePoint ready_;

  std::atomic<bool> withdrawn_ = false;  // the caller released it: stop at the next chance

  // Guarded by the scheduler's mutex.
  RequestState state_ = RequestState::kValidated;
  std::shared_ptr<RequestListener> listener_;  // until kReleased
  TenantHold hold_;
  bool admitted_ = false;                     // counted among its tenant's host memory
  bool passed_ = false;                       // given host memory before one that had waited for longer
  std::vector<std::unique_ptr<Part>> parts_;  // from kReady on
  absl::Status failure_;                      // why it ends early
  double done_flops_ = 0;                     // of all parts
  std::optional<TimePoint> began_;            // its first slice

  RequestMemory memory_;
  RequestTimings timings_;
  std::string device_name_;
};

}  // namespace flashbob::server

#endif  // FLASHBOB_SERVER_SCHEDULER_REQUEST_H_
