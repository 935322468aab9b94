// FifoScheduler: one device, requests in the order in which they became ready, a bounded queue.
//
// Two threads of its own: one admits requests that have to wait for host memory, in their order; one runs slices and
// looks at cancellation and deadline between them.
#ifndef FLASHBOB_SERVER_SCHEDULER_FIFO_SCHEDULER_H_
#define FLASHBOB_SERVER_SCHEDULER_FIFO_SCHEDULER_H_

#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "kernels/base/mutex.h"
#include "server/memory/host_memory_pool.h"
#include "server/metrics/server_metrics.h"
#include "server/scheduler/cost_model.h"
#include "server/scheduler/device_tensors.h"
#include "server/scheduler/scheduler.h"

namespace flashbob::server {

class FifoScheduler final : public Scheduler {
 public:
  struct Options {
    int64_t max_queued_requests = 256;    // in kValidated, kReceiving or kReady at once
    int64_t max_message_bytes = 4 << 20;  // what one message that carries tensor bytes may hold
    // Called once, from the device's thread, when the device failed. Later requests fail as well.
    std::function<void(const absl::Status&)> on_device_lost;
  };

  // All references must outlive the scheduler.
  static absl::StatusOr<std::unique_ptr<FifoScheduler>> Create(Engine& engine, HostMemoryPool& pool, const Clock& clock,
                                                               ServerMetrics& metrics, Options options);
  // Every request must have been released.
  ~FifoScheduler() override;

  absl::StatusOr<Submitted> Submit(Submission submission) override;
  void Ready(const std::shared_ptr<Request>& request) override;
  void Release(const std::shared_ptr<Request>& request) override;
  QueueEstimate Ahead() const override;
  std::array<int64_t, kNumRequestStates> CountByState() const override;
  std::vector<DeviceUse> Devices() const override;
  void Drain() override;

 private:
  FifoScheduler(Engine& engine, HostMemoryPool& pool, const Clock& clock, ServerMetrics& metrics, Options options,
                std::unique_ptr<Stream> stream);

  // The threads.
  void AdmitLoop();
  void DeviceLoop();

  // Checks that need no lock: that it can ever fit.
  absl::Status CheckSize(const Computation& computation, const Plan& plan) const;
  int64_t HostBytes(const Plan& plan) const;
  absl::Status CheckQueueLocked(const Request& request) const FLASHBOB_REQUIRES(mutex_);
  absl::StatusOr<RequestMemory> AllocateMemory(const Plan& plan, Reservation reservation);

  // Runs all slices; OK where the outputs lie in host memory.
  absl::Status Run(Request& request, const std::shared_ptr<RequestListener>& listener);
  absl::Status RunSlices(Request& request, const DeviceTensors& device,
                         const std::shared_ptr<RequestListener>& listener);
  absl::Status CheckWanted(const Request& request, const char* when) const;
  absl::Status DeviceFailed(const absl::Status& status);

  int64_t CountLocked(RequestState state) const FLASHBOB_REQUIRES(mutex_) {
    return in_state_[static_cast<size_t>(state)];
  }
  void MoveLocked(Request& request, RequestState to) FLASHBOB_REQUIRES(mutex_);
  // Moves to kReleased; the caller destroys what is returned once it has unlocked.
  [[nodiscard]] RequestMemory ReleaseLocked(Request& request) FLASHBOB_REQUIRES(mutex_);
  QueueEstimate AheadLocked() const FLASHBOB_REQUIRES(mutex_);

  Engine& engine_;
  HostMemoryPool& pool_;
  const Clock& clock_;
  ServerMetrics& metrics_;
  const Options options_;
  const std::unique_ptr<Stream> stream_;

  mutable Mutex mutex_;
  CondVar admit_changed_;
  CondVar device_changed_;
  bool draining_ FLASHBOB_GUARDED_BY(mutex_) = false;
  bool stopping_ FLASHBOB_GUARDED_BY(mutex_) = false;
  absl::Status device_lost_ FLASHBOB_GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<Request>> waiting_ FLASHBOB_GUARDED_BY(mutex_);  // kValidated, for memory
  std::deque<std::shared_ptr<Request>> ready_ FLASHBOB_GUARDED_BY(mutex_);    // kReady
  std::shared_ptr<Request> running_ FLASHBOB_GUARDED_BY(mutex_);
  double running_done_flops_ FLASHBOB_GUARDED_BY(mutex_) = 0;
  std::array<int64_t, kNumRequestStates> in_state_ FLASHBOB_GUARDED_BY(mutex_) = {};
  CostModel costs_ FLASHBOB_GUARDED_BY(mutex_);
  DeviceUse device_use_ FLASHBOB_GUARDED_BY(mutex_);

  std::thread admit_thread_;
  std::thread device_thread_;
};

}  // namespace flashbob::server

#endif  // FLASHBOB_SERVER_SCHEDULER_FIFO_SCHEDULER_H_
