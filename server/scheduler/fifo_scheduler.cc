#include "server/scheduler/fifo_scheduler.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "server/base/errors.h"

namespace flashbob::server {
namespace {

// A request is refused for its deadline only where it would miss it at this many times the estimated speed: a first
// guess of the rate is easily off by as much, and a refusal of what could be done is worse than a try.
constexpr int kOptimism = 2;

// How soon a client that was turned away may come back: when about one request's time has passed.
Duration RetryDelay(const QueueEstimate& ahead) {
  const Duration each = ahead.requests > 0 ? ahead.wait / ahead.requests : Duration(0);
  return std::clamp<Duration>(each, std::chrono::milliseconds(100), std::chrono::seconds(30));
}

absl::Status Draining() {
  return RetryableError(Reason::kDraining, "the server is shutting down and takes no new requests",
                        std::chrono::seconds(1));
}

std::string Seconds(Duration duration) { return absl::StrFormat("%.3f s", ToSeconds(duration)); }

template <typename Visitor>
void ForEachTensor(const Computation& computation, Visitor visit) {
  (computation.inputs() | computation.outputs()).ForEach([&](TensorName name) {
    visit(name, computation.problem().NumBytes(name));
  });
}

}  // namespace

absl::StatusOr<std::unique_ptr<FifoScheduler>> FifoScheduler::Create(Engine& engine, HostMemoryPool& pool,
                                                                     const Clock& clock, ServerMetrics& metrics,
                                                                     Options options) {
  FLASHBOB_ASSIGN_OR_RETURN(std::unique_ptr<Stream> stream, engine.CreateStream());
  return std::unique_ptr<FifoScheduler>(
      new FifoScheduler(engine, pool, clock, metrics, std::move(options), std::move(stream)));
}

FifoScheduler::FifoScheduler(Engine& engine, HostMemoryPool& pool, const Clock& clock, ServerMetrics& metrics,
                             Options options, std::unique_ptr<Stream> stream)
    : engine_(engine),
      pool_(pool),
      clock_(clock),
      metrics_(metrics),
      options_(std::move(options)),
      stream_(std::move(stream)),
      costs_({engine.device().flops_per_second}),
      admit_thread_([this] { AdmitLoop(); }),
      device_thread_([this] { DeviceLoop(); }) {
  MutexLock lock(mutex_);
  device_use_.engine = &engine_;
}

FifoScheduler::~FifoScheduler() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    admit_changed_.NotifyAll();
    device_changed_.NotifyAll();
  }
  admit_thread_.join();
  device_thread_.join();
}

absl::StatusOr<Submitted> FifoScheduler::Submit(Submission submission) {
  const TimePoint now = clock_.Now();
  // Before the plan: one for a problem that can never fit may itself be huge.
  const Computation& computation = submission.computation;
  int64_t tensor_bytes = 0;
  ForEachTensor(computation, [&](TensorName, int64_t bytes) { tensor_bytes += HostMemoryPool::BlockBytes(bytes); });
  if (tensor_bytes > pool_.limit_bytes()) {
    return Error(Reason::kTooLarge,
                 absl::StrCat("inputs of ", computation.input_bytes(), " bytes and outputs of ",
                              computation.output_bytes(), " do not fit into the ", pool_.limit_bytes(),
                              " bytes of host memory that this server has for requests"),
                 {{"needed_bytes", tensor_bytes}, {"limit_bytes", pool_.limit_bytes()}});
  }
  absl::StatusOr<std::unique_ptr<const Plan>> plan = engine_.MakePlan(computation);
  if (absl::IsResourceExhausted(plan.status()) || absl::IsFailedPrecondition(plan.status())) {
    return Error(Reason::kTooLarge, std::string(plan.status().message()));
  }
  if (!plan.ok()) return AsSpecError(plan.status());
  FLASHBOB_RETURN_IF_ERROR(CheckSize(computation, **plan));

  const auto request =
      std::make_shared<Request>(std::move(submission.request_id), *std::move(plan), now, submission.deadline);
  request->host_bytes_ = HostBytes(request->plan());
  request->listener_ = std::move(submission.listener);
  std::optional<Reservation> reservation;
  {
    MutexLock lock(mutex_);
    FLASHBOB_RETURN_IF_ERROR(CheckQueueLocked(*request));
    ++in_state_[static_cast<size_t>(RequestState::kValidated)];
    if (waiting_.empty()) reservation = pool_.TryReserve(request->host_bytes_);
    if (!reservation.has_value()) {
      waiting_.push_back(request);
      admit_changed_.NotifyAll();
      return Submitted{request, false};
    }
  }
  absl::StatusOr<RequestMemory> memory = AllocateMemory(request->plan(), *std::move(reservation));
  MutexLock lock(mutex_);
  if (!memory.ok()) {
    MoveLocked(*request, RequestState::kReleased);
    return memory.status();
  }
  request->memory_ = *std::move(memory);
  MoveLocked(*request, RequestState::kReceiving);
  return Submitted{request, true};
}

void FifoScheduler::Ready(const std::shared_ptr<Request>& request) {
  MutexLock lock(mutex_);
  if (request->state_ != RequestState::kReceiving) return;
  request->ready_ = clock_.Now();
  request->timings_.receive = request->ready_ - request->received_;
  MoveLocked(*request, RequestState::kReady);
  ready_.push_back(request);
  device_changed_.NotifyAll();
}

void FifoScheduler::Release(const std::shared_ptr<Request>& request) {
  // Both are destroyed after the lock is gone.
  RequestMemory freed;
  std::shared_ptr<RequestListener> listener;
  MutexLock lock(mutex_);
  if (request->state_ == RequestState::kReleased) return;
  request->withdrawn_ = true;
  listener = std::move(request->listener_);
  if (request->state_ == RequestState::kRunning) return;  // the device's thread frees it after the slice
  if (request->state_ == RequestState::kValidated) {
    std::erase(waiting_, request);
    pool_.WakeWaiters();
  }
  if (request->state_ == RequestState::kReady) std::erase(ready_, request);
  freed = ReleaseLocked(*request);
}

QueueEstimate FifoScheduler::Ahead() const {
  MutexLock lock(mutex_);
  return AheadLocked();
}

std::array<int64_t, kNumRequestStates> FifoScheduler::CountByState() const {
  MutexLock lock(mutex_);
  return in_state_;
}

std::vector<DeviceUse> FifoScheduler::Devices() const {
  MutexLock lock(mutex_);
  return {device_use_};
}

void FifoScheduler::Drain() {
  MutexLock lock(mutex_);
  draining_ = true;
}

void FifoScheduler::AdmitLoop() {
  while (true) {
    std::shared_ptr<Request> request;
    {
      MutexLock lock(mutex_);
      while (!stopping_ && waiting_.empty()) admit_changed_.Wait(mutex_);
      if (stopping_) return;
      request = waiting_.front();  // and there it stays, so that nobody overtakes it
    }
    std::optional<Reservation> reservation = pool_.Reserve(request->host_bytes_, request->withdrawn_);
    absl::StatusOr<RequestMemory> memory = absl::CancelledError();
    if (reservation.has_value()) memory = AllocateMemory(request->plan(), *std::move(reservation));
    std::shared_ptr<RequestListener> listener;
    {
      MutexLock lock(mutex_);
      if (request->state_ != RequestState::kValidated) continue;  // released meanwhile
      std::erase(waiting_, request);
      listener = request->listener_;
      if (memory.ok()) {
        request->memory_ = *std::move(memory);
        MoveLocked(*request, RequestState::kReceiving);
      } else {
        MoveLocked(*request, RequestState::kReleased);
        request->listener_.reset();
      }
    }
    if (memory.ok()) {
      listener->OnAdmitted();
    } else {
      listener->OnComputed(memory.status());
    }
  }
}

void FifoScheduler::DeviceLoop() {
  while (true) {
    std::shared_ptr<Request> request;
    std::shared_ptr<RequestListener> listener;
    absl::Status status;
    {
      MutexLock lock(mutex_);
      while (!stopping_ && ready_.empty()) device_changed_.Wait(mutex_);
      if (stopping_) return;
      request = std::move(ready_.front());
      ready_.pop_front();
      listener = request->listener_;
      status = device_lost_;
      status.Update(CheckWanted(*request, "before it began"));
      if (request->state_ == RequestState::kReleased) continue;
      if (status.ok()) {
        MoveLocked(*request, RequestState::kRunning);
        running_ = request;
        running_done_flops_ = 0;
      }
    }
    if (status.ok()) {
      status = Run(*request, listener);
      // A slow client holds what it has yet to be sent, no more.
      const Computation& computation = request->computation();
      (computation.inputs() - computation.outputs()).ForEach([&](TensorName name) {
        request->memory_.tensors[static_cast<size_t>(name)] = HostBuffer();
      });
      request->memory_.workspace = HostBuffer();
    }
    RequestMemory freed;
    {
      MutexLock lock(mutex_);
      running_.reset();
      if (status.ok() && request->withdrawn_) status = absl::CancelledError("the caller left");
      if (status.ok()) {
        costs_.Observe(0, request->computation(), request->computation().flops(), request->timings_.compute);
        MoveLocked(*request, RequestState::kSending);
      } else if (request->state_ != RequestState::kReleased) {
        // Else the caller released it between the two locks.
        freed = ReleaseLocked(*request);
      }
      listener = status.ok() ? request->listener_ : std::move(request->listener_);
    }
    freed = RequestMemory();
    if (listener != nullptr) listener->OnComputed(status);
  }
}

absl::Status FifoScheduler::CheckSize(const Computation& computation, const Plan& plan) const {
  const int64_t host_bytes = HostBytes(plan);
  const auto workspace_bytes = static_cast<int64_t>(plan.workspace_bytes());
  const std::string parts = absl::StrCat("inputs of ", computation.input_bytes(), " bytes, outputs of ",
                                         computation.output_bytes(), " and a workspace of ", workspace_bytes);
  if (host_bytes > pool_.limit_bytes()) {
    return Error(Reason::kTooLarge,
                 absl::StrCat(parts, " take ", host_bytes, " bytes of host memory; this server has ",
                              pool_.limit_bytes(), " for requests"),
                 {{"needed_bytes", host_bytes}, {"limit_bytes", pool_.limit_bytes()}});
  }
  const DeviceInfo& device = engine_.device();
  const int64_t device_bytes = DeviceTensors::BytesOf(engine_, plan);
  if (device_bytes > device.memory_bytes) {
    return Error(Reason::kTooLarge,
                 absl::StrCat(parts, " take ", device_bytes, " bytes of device memory; ", device.name, " has ",
                              device.memory_bytes),
                 {{"needed_bytes", device_bytes}, {"limit_bytes", device.memory_bytes}});
  }
  return absl::OkStatus();
}

int64_t FifoScheduler::HostBytes(const Plan& plan) const {
  int64_t total = 0;
  int64_t largest = 0;
  ForEachTensor(plan.computation(), [&](TensorName, int64_t bytes) {
    total += HostMemoryPool::BlockBytes(bytes);
    largest = std::max(largest, bytes);
  });
  if (engine_.unified_memory()) total += HostMemoryPool::BlockBytes(static_cast<int64_t>(plan.workspace_bytes()));
  return total + std::min(largest, options_.max_message_bytes);
}

absl::Status FifoScheduler::CheckQueueLocked(const Request& request) const {
  if (draining_) return Draining();
  FLASHBOB_RETURN_IF_ERROR(device_lost_);
  const QueueEstimate ahead = AheadLocked();
  const int64_t queued =
      CountLocked(RequestState::kValidated) + CountLocked(RequestState::kReceiving) + CountLocked(RequestState::kReady);
  if (queued >= options_.max_queued_requests) {
    return RetryableError(
        Reason::kQueueFull,
        absl::StrCat(queued, " requests wait already; this server lets ", options_.max_queued_requests, " wait"),
        RetryDelay(ahead), {{"queued_requests", queued}, {"max_queued_requests", options_.max_queued_requests}});
  }
  if (request.deadline() != kNoDeadline) {
    const Computation& computation = request.computation();
    const Duration own = costs_.Estimate(computation, computation.flops());
    const Duration left = request.deadline() - clock_.Now();
    if ((ahead.wait + own) / kOptimism > left) {
      return Error(Reason::kDeadline,
                   absl::StrCat("the deadline is in ", Seconds(left), "; the ", ahead.requests,
                                " requests ahead take about ", Seconds(ahead.wait), " and this one ", Seconds(own)));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<RequestMemory> FifoScheduler::AllocateMemory(const Plan& plan, Reservation reservation) {
  RequestMemory memory;
  absl::Status status;
  ForEachTensor(plan.computation(), [&](TensorName name, int64_t bytes) {
    if (!status.ok()) return;
    absl::StatusOr<HostBuffer> buffer = pool_.Allocate(reservation, bytes);
    status = buffer.status();
    if (buffer.ok()) memory.tensors[static_cast<size_t>(name)] = *std::move(buffer);
  });
  FLASHBOB_RETURN_IF_ERROR(status);
  if (engine_.unified_memory()) {
    FLASHBOB_ASSIGN_OR_RETURN(memory.workspace,
                              pool_.Allocate(reservation, static_cast<int64_t>(plan.workspace_bytes())));
  }
  memory.transit = std::move(reservation);
  return memory;
}

absl::Status FifoScheduler::Run(Request& request, const std::shared_ptr<RequestListener>& listener) {
  const int64_t device_bytes = DeviceTensors::BytesOf(engine_, request.plan());
  absl::StatusOr<DeviceTensors> device = DeviceTensors::Create(engine_, request.plan(), request.memory_);
  if (!device.ok()) {
    return RetryableError(Reason::kQueueFull,
                          absl::StrCat(engine_.device().name, " has no ", device_bytes,
                                       " bytes left: ", std::string(device.status().message())),
                          std::chrono::seconds(1));
  }
  {
    MutexLock lock(mutex_);
    device_use_.reserved_bytes += device_bytes;
    device_use_.high_water_bytes = std::max(device_use_.high_water_bytes, device_use_.reserved_bytes);
  }
  absl::Status status = RunSlices(request, *device, listener);
  // Nothing may be freed that the device still works on, however the slices ended.
  const absl::Status synchronized = stream_->Synchronize();
  if (!synchronized.ok()) status.Update(DeviceFailed(synchronized));
  MutexLock lock(mutex_);
  device_use_.reserved_bytes -= device_bytes;
  return status;
}

absl::Status FifoScheduler::RunSlices(Request& request, const DeviceTensors& device,
                                      const std::shared_ptr<RequestListener>& listener) {
  const Plan& plan = request.plan();
  absl::Status status = device.CopyInputs(*stream_);
  if (status.ok()) status = stream_->Synchronize();
  if (!status.ok()) return DeviceFailed(status);

  const TimePoint began = clock_.Now();
  request.timings_.queue = began - request.ready_;
  TimePoint slice_began = began;
  double done_flops = 0;
  for (int slice = 0; slice < plan.num_slices(); ++slice) {
    FLASHBOB_RETURN_IF_ERROR(CheckWanted(request, "while it ran"));
    status = engine_.Launch(plan, slice, device.tensors(), device.workspace(), *stream_);
    if (status.ok()) status = stream_->Synchronize();
    if (!status.ok()) return DeviceFailed(status);
    const TimePoint slice_ended = clock_.Now();
    const double slice_flops = plan.slice_flops(slice);
    metrics_.CountSlice(0, slice_ended - slice_began, slice_flops);
    slice_began = slice_ended;
    done_flops += slice_flops;
    {
      MutexLock lock(mutex_);
      running_done_flops_ = done_flops;
    }
    if (slice + 1 < plan.num_slices()) listener->OnProgress(done_flops);
  }
  request.timings_.compute = slice_began - began;
  status = device.CopyOutputs(*stream_);
  if (status.ok()) status = stream_->Synchronize();
  if (!status.ok()) return DeviceFailed(status);
  return CheckWanted(request, "when it was done");
}

absl::Status FifoScheduler::CheckWanted(const Request& request, const char* when) const {
  if (request.withdrawn_) return absl::CancelledError("the caller left");
  const TimePoint now = clock_.Now();
  if (now >= request.deadline()) {
    return Error(Reason::kDeadline, absl::StrCat("the deadline passed ", when, ", ", Seconds(now - request.received_),
                                                 " after the request came"));
  }
  return absl::OkStatus();
}

absl::Status FifoScheduler::DeviceFailed(const absl::Status& status) {
  const absl::Status lost = RetryableError(
      Reason::kDeviceLost, absl::StrCat("device ", engine_.device().name, " failed: ", std::string(status.message())),
      std::chrono::seconds(5));
  bool first = false;
  {
    MutexLock lock(mutex_);
    first = device_lost_.ok();
    device_lost_ = lost;
  }
  if (first && options_.on_device_lost) options_.on_device_lost(lost);
  return lost;
}

void FifoScheduler::MoveLocked(Request& request, RequestState to) {
  --in_state_[static_cast<size_t>(request.state_)];
  request.state_ = to;
  if (to != RequestState::kReleased) ++in_state_[static_cast<size_t>(to)];
}

RequestMemory FifoScheduler::ReleaseLocked(Request& request) {
  MoveLocked(request, RequestState::kReleased);
  return std::move(request.memory_);
}

QueueEstimate FifoScheduler::AheadLocked() const {
  QueueEstimate ahead;
  if (running_ != nullptr) {
    const double left = std::max(running_->computation().flops() - running_done_flops_, 0.0);
    ahead.requests = 1;
    ahead.wait = costs_.Estimate(running_->computation(), left);
  }
  ahead.requests += static_cast<int64_t>(ready_.size());
  for (const auto& request : ready_) {
    ahead.wait += costs_.Estimate(request->computation(), request->computation().flops());
  }
  return ahead;
}

}  // namespace flashbob::server
