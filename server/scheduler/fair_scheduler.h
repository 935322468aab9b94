// FairScheduler: shares host memory and devices among tenants.
//
//   Submit -> [host memory] -> Ready -> FairQueue -> [device memory] -> upload -> slices -> download -> OnComputed
//
// Host memory goes to the tenant that has least of it for its weight. While a large request waits for some, smaller
// ones of other tenants pass it: at first freely, later within an eighth of the memory, so that neither waits for ever.
//
// Host memory comes first, device memory second and only for what is about to run, so that no cycle of waits can form.
// Requests belong to no device until one has memory for them: whichever is free first takes the next.
//
// A long request may be split when it is ready: each of its parts is some batch entries and heads, with a place of its
// own in the queue, on whichever device is free for it, one on a device at a time. Parts share nothing but the
// request's host memory, so none ever waits for another; the last one to end makes the request end.
//
// Threads of its own: one admits requests that wait for host memory, or for page-locked memory to be allocated; each
// device has one that places requests and runs slices, looking at cancellation and deadline between them, and, where
// its memory is apart, one that copies inputs in and one that copies outputs back, on streams of their own, so that
// copies and compute overlap. Large inputs are copied in pieces that take turns. A device that is idle may be lent to
// the thread that readies a short request: to wake another one up takes as long as the request.
#ifndef FLASHBOB_SERVER_SCHEDULER_FAIR_SCHEDULER_H_
#define FLASHBOB_SERVER_SCHEDULER_FAIR_SCHEDULER_H_

#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "kernels/base/mutex.h"
#include "server/memory/device_memory_pool.h"
#include "server/memory/host_memory_pool.h"
#include "server/metrics/server_metrics.h"
#include "server/scheduler/cost_model.h"
#include "server/scheduler/device_tensors.h"
#include "server/scheduler/fair_queue.h"
#include "server/scheduler/hang_watch.h"
#include "server/scheduler/part.h"
#include "server/scheduler/scheduler.h"

namespace flashbob::server {

class FairScheduler final : public Scheduler {
 public:
  struct Options {
    int64_t max_queued_requests = 256;    // in kValidated, kReceiving or kReady at once
    int64_t max_message_bytes = 4 << 20;  // what one message that carries tensor bytes may hold
    int64_t device_memory_bytes = 0;      // of each device for requests; 0: all that it has
    // A request that takes no more of a device's memory is copied on the stream that computes it: to pass it from
    // thread to thread, and wait for the device at each, takes longer.
    int64_t inline_copy_bytes = 4 << 20;
    // Requests that by their estimate take no longer, where they are copied so, are computed within Ready by an idle
    // device whose memory is apart.
    Duration within_ready = Duration(0);
    // A request of so many seconds of device time is split over the devices, into parts of half as many or more, where
    // what is ahead of it takes no longer than itself. 0: whatever can be split is, always.
    double split_seconds = std::numeric_limits<double>::infinity();
    FairQueue::Options fairness;
    int hang_looks = 60;  // LookForHangs that find a device at the same work
    // Called once, from some thread, when a device failed.
    std::function<void(const absl::Status&)> on_device_lost;
  };

  // One engine a device, at least one. All references must outlive the scheduler.
  static absl::StatusOr<std::unique_ptr<FairScheduler>> Create(const std::vector<Engine*>& engines,
                                                               HostMemoryPool& pool, const Clock& clock,
                                                               ServerMetrics& metrics, Options options);
  // Every request must have been released.
  ~FairScheduler() override;

  absl::StatusOr<Submitted> Submit(Submission submission) override;
  void Ready(const std::shared_ptr<Request>& request) override;
  void Release(const std::shared_ptr<Request>& request) override;
  QueueEstimate Ahead() const override;
  RequestView View(const Request& request) const override;
  std::array<int64_t, kNumRequestStates> CountByState() const override;
  std::vector<DeviceUse> Devices() const override;
  void LookForHangs() override;
  void Drain() override;

 private:
  using RequestPointer = std::shared_ptr<Request>;
  using PartPointer = std::shared_ptr<Part>;  // which keeps its request

  struct Device {
    Device(size_t index, Engine& engine, int64_t memory_bytes, int hang_looks)
        : index(index), engine(engine), pool(memory_bytes), hang_watch(hang_looks) {}

    const size_t index;
    Engine& engine;
    DeviceMemoryPool pool;
    HangWatch hang_watch;
    std::unique_ptr<Stream> upload;
    std::unique_ptr<Stream> compute;
    std::unique_ptr<Stream> download;
    CondVar compute_changed;
    CondVar upload_changed;
    CondVar download_changed;
    std::vector<std::thread> threads;
  };
  // The part of a device that changes.
  struct DeviceState {
    std::deque<PartPointer> to_upload;
    std::deque<PartPointer> to_download;
    int placed = 0;
    bool lent = false;  // a thread in Ready has it: its own stays away
    absl::Status lost;
  };
  // What a part or a request held. The order of destruction matters, last to first: device memory before the count of
  // it, host memory at the end, since whoever waits for that may rely on all else being free.
  struct FreedOnDevice {
    DeviceReservation memory;
    std::unique_ptr<DeviceTensors> tensors;
  };
  struct Freed {
    RequestMemory memory;
    std::vector<FreedOnDevice> on_devices;
    TenantHold hold;
  };
  // A request that ended otherwise than by its caller's wish.
  struct Ended {
    Freed freed;
    std::shared_ptr<RequestListener> listener;  // null where there is nobody to tell, or not yet
    absl::Status status;
  };

  // What a device has to do next.
  struct Turn {
    std::vector<Ended> ended;  // to be disposed of
    PartPointer part;          // busy with its next slice; null: none is due
    int slice = 0;
  };

  FairScheduler(HostMemoryPool& pool, const Clock& clock, ServerMetrics& metrics, Options options,
                std::vector<std::unique_ptr<Device>> devices);
  void StartThreads();

  // fair_scheduler.cc: from the spec to the fair queue, and out again.
  void AdmitLoop();
  absl::Status CheckSize(const Computation& computation, const Plan& plan, const StoredInputs& stored) const;
  int64_t HostBytes(const Plan& plan, const StoredInputs& stored) const;
  absl::Status CheckQueueLocked(const Request& request) const FLASHBOB_REQUIRES(mutex_);
  // Whether host memory for it can be allocated without asking the system for page-locked memory: that takes
  // milliseconds, which a gRPC reaction does not have.
  bool AllocatesAtOnce(const Plan& plan, const StoredInputs& stored) const;
  absl::StatusOr<RequestMemory> AllocateMemory(const Plan& plan, const StoredInputs& stored, Reservation reservation);
  // One that waits for host memory and now has it, in `reservation`; null where there is none. It is still among those
  // that wait.
  RequestPointer NextToAdmitLocked(std::optional<Reservation>& reservation) FLASHBOB_REQUIRES(mutex_);
  // Those that wait, in the order in which they should have memory: first_in_line_, then by what their tenant has of it
  // for its weight, then by age.
  std::vector<RequestPointer> InLineLocked() const FLASHBOB_REQUIRES(mutex_);
  // Whether a request of another tenant's may have memory while the first in line lacks some.
  bool MayPassLocked(const Request& request, const Request& first) const FLASHBOB_REQUIRES(mutex_);
  void AdmitLocked(Request& request) FLASHBOB_REQUIRES(mutex_);
  absl::Status CheckWanted(const Request& request, const char* when) const;
  int64_t CountLocked(RequestState state) const FLASHBOB_REQUIRES(mutex_) {
    return in_state_[static_cast<size_t>(state)];
  }
  void MoveLocked(Request& request, RequestState to) FLASHBOB_REQUIRES(mutex_);
  // Moves to kReleased or, where a thread works for one of its parts, lets the others go: call it again once the thread
  // is done. What is returned must be destroyed by Dispose, once unlocked.
  [[nodiscard]] Freed ReleaseLocked(const RequestPointer& request) FLASHBOB_REQUIRES(mutex_);
  // The same for one that ends early, by the first status of those that it is called with.
  [[nodiscard]] Ended EndLocked(const RequestPointer& request, const absl::Status& status) FLASHBOB_REQUIRES(mutex_);
  void Dispose(Freed freed) FLASHBOB_EXCLUDES(mutex_);
  void Dispose(std::vector<Ended> ended) FLASHBOB_EXCLUDES(mutex_);
  Duration LeftLocked(const Part& part) const FLASHBOB_REQUIRES(mutex_);
  QueueEstimate AheadLocked() const FLASHBOB_REQUIRES(mutex_);
  Duration WaitLocked(const Request& request, Duration own) const FLASHBOB_REQUIRES(mutex_);
  absl::Status AllLostLocked() const FLASHBOB_REQUIRES(mutex_);
  void WakeDevicesLocked() FLASHBOB_REQUIRES(mutex_);

  // fair_scheduler_parts.cc: what a request that is ready is split into, and how its parts end.
  int PartsWantedLocked(const Computation& computation) const FLASHBOB_REQUIRES(mutex_);
  // At most so many, at least one.
  std::vector<std::unique_ptr<Part>> MakeParts(Request& request, int most) const;
  void EnqueueLocked(const RequestPointer& request, std::vector<std::unique_ptr<Part>> parts) FLASHBOB_REQUIRES(mutex_);
  // A device for the thread that readies the request; null: the devices' own threads take it.
  Device* DeviceToLendLocked(const Request& request) const FLASHBOB_REQUIRES(mutex_);
  // Takes a part out of the queue and off its device, wherever it is; what it holds there is the caller's.
  [[nodiscard]] FreedOnDevice TakeOffLocked(Part& part) FLASHBOB_REQUIRES(mutex_);
  // The outputs of a busy part lie in host memory.
  void Complete(const PartPointer& part);

  // fair_scheduler_devices.cc: on the devices.
  void ComputeLoop(Device& device);
  void UploadLoop(Device& device);
  void DownloadLoop(Device& device);
  Turn NextTurnLocked(Device& device) FLASHBOB_REQUIRES(mutex_);
  void TakeTurn(Device& device, Turn turn);
  std::vector<Ended> SweepLocked(const Device& device) FLASHBOB_REQUIRES(mutex_);
  void PlaceLocked(Device& device) FLASHBOB_REQUIRES(mutex_);
  bool AnotherIsIdleLocked(const Device& device) const FLASHBOB_REQUIRES(mutex_);
  void RunSlice(Device& device, const PartPointer& part, int slice);
  absl::Status ComputeSlice(Device& device, Part& part, int slice);
  // Where it has none yet.
  absl::Status AllocateOnDevice(Device& device, Part& part);
  absl::StatusOr<bool> UploadPiece(Device& device, Part& part);
  absl::Status DownloadOutputs(Device& device, const Part& part);
  // Waits for what was asked of the device on a stream, which ended with `status`. Where that is RESOURCE_EXHAUSTED and
  // the device is well, the request alone fails: a kernel's code, for one, needs memory at its first launch.
  absl::Status WaitFor(const Device& device, const Part& part, Stream& stream, absl::Status status);
  static absl::Status ShortOfMemory(const Device& device, const Part& part, const absl::Status& status);
  // A thread is done with a busy part for now; ends its request where `status` is not OK or nobody wants it any more.
  bool StopWorkLocked(Part& part, absl::Status status, std::vector<Ended>& ended) FLASHBOB_REQUIRES(mutex_);
  absl::Status DeviceFailed(const Device& device, const absl::Status& status);
  // Ends the calls of all that is on a device that hangs. What that works on keeps its memory until it comes back.
  void GiveUp(const Device& device, const absl::Status& lost);

  HostMemoryPool& pool_;
  const Clock& clock_;
  ServerMetrics& metrics_;
  const Options options_;
  const std::vector<std::unique_ptr<Device>> devices_;

  mutable Mutex mutex_;
  CondVar admit_changed_;
  bool draining_ FLASHBOB_GUARDED_BY(mutex_) = false;
  bool stopping_ FLASHBOB_GUARDED_BY(mutex_) = false;
  bool any_lost_ FLASHBOB_GUARDED_BY(mutex_) = false;
  uint64_t next_ticket_ FLASHBOB_GUARDED_BY(mutex_) = 1;
  FairQueue queue_ FLASHBOB_GUARDED_BY(mutex_);
  CostModel costs_ FLASHBOB_GUARDED_BY(mutex_);
  std::vector<DeviceState> states_ FLASHBOB_GUARDED_BY(mutex_);                  // by device
  std::deque<RequestPointer> waiting_ FLASHBOB_GUARDED_BY(mutex_);               // kValidated, for host memory
  RequestPointer first_in_line_ FLASHBOB_GUARDED_BY(mutex_);                     // of those; null: none was chosen yet
  int64_t passed_bytes_ FLASHBOB_GUARDED_BY(mutex_) = 0;                         // held by those with passed_
  std::map<uint64_t, PartPointer> active_ FLASHBOB_GUARDED_BY(mutex_);           // not computed, by ticket
  std::map<const Tenant*, int64_t> admitted_bytes_ FLASHBOB_GUARDED_BY(mutex_);  // of host memory
  std::array<int64_t, kNumRequestStates> in_state_ FLASHBOB_GUARDED_BY(mutex_) = {};

  std::thread admit_thread_;
};

}  // namespace flashbob::server

#endif  // FLASHBOB_SERVER_SCHEDULER_FAIR_SCHEDULER_H_
