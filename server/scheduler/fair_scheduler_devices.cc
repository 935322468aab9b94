// FairScheduler's threads of the devices: placing, copying in, slices, copying back.
#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/base/errors.h"
#include "server/scheduler/fair_scheduler.h"

namespace flashbob::server {
namespace {

// So much of one request's inputs is copied before the next one's turn: 1/3 ms at a GPU's usual rate.
constexpr int64_t kUploadPieceBytes = 16 << 20;

// A request that waited so long for device memory gets what becomes free before those that would fit now.
constexpr Duration kPatience = std::chrono::seconds(1);

}  // namespace

void FairScheduler::ComputeLoop(Device& device) {
  while (true) {
    Turn turn;
    {
      MutexLock lock(mutex_);
      while (true) {
        if (stopping_) return;
        if (!states_[device.index].lent) turn = NextTurnLocked(device);
        if (turn.request != nullptr || !turn.ended.empty()) break;
        device.compute_changed.Wait(mutex_);
      }
    }
    TakeTurn(device, std::move(turn));
  }
}

FairScheduler::Turn FairScheduler::NextTurnLocked(Device& device) {
  Turn turn;
  turn.ended = SweepLocked(device);
  if (!turn.ended.empty()) return turn;
  PlaceLocked(device);
  const std::optional<FairQueue::Ticket> next = queue_.Next(static_cast<int>(device.index), clock_.Now());
  if (!next.has_value()) return turn;
  turn.request = active_.at(*next);
  const Plan& plan = turn.request->plan();
  turn.slice = turn.request->next_slice_;
  const double flops = turn.slice < plan.num_slices() ? plan.slice_flops(turn.slice) : 0;
  queue_.Begin(*next, costs_.Estimate(device.index, turn.request->computation(), flops));
  turn.request->busy_ = true;
  return turn;
}

void FairScheduler::TakeTurn(Device& device, Turn turn) {
  Dispose(std::move(turn.ended));
  if (turn.request != nullptr) RunSlice(device, turn.request, turn.slice);
}

std::vector<FairScheduler::Ended> FairScheduler::SweepLocked(const Device& device) {
  const absl::Status lost = states_[device.index].lost;
  const absl::Status all_lost = AllLostLocked();
  std::vector<RequestPointer> unwanted;
  std::vector<absl::Status> why;
  for (const auto& [ticket, request] : active_) {
    if (request->busy_) continue;
    absl::Status status;
    if (request->device_ == static_cast<int>(device.index)) status = lost;
    if (request->device_ < 0) status = all_lost;
    const bool began = request->next_slice_ > 0;
    status.Update(CheckWanted(*request, began ? "while it ran" : "before it began"));
    if (status.ok()) continue;
    unwanted.push_back(request);
    why.push_back(status);
  }
  std::vector<Ended> ended;
  for (size_t i = 0; i < unwanted.size(); ++i) ended.push_back(EndLocked(unwanted[i], why[i]));
  return ended;
}

bool FairScheduler::AnotherIsIdleLocked(const Device& device) const {
  if (states_[device.index].placed == 0) return false;
  return std::any_of(states_.begin(), states_.end(),
                     [](const DeviceState& state) { return state.lost.ok() && state.placed == 0; });
}

void FairScheduler::PlaceLocked(Device& device) {
  if (!states_[device.index].lost.ok()) return;
  const int index = static_cast<int>(device.index);
  bool placed = true;
  while (placed && !AnotherIsIdleLocked(device)) {
    placed = false;
    const TimePoint now = clock_.Now();
    auto part = DeviceMemoryPool::Part::kAny;
    for (FairQueue::Ticket ticket : queue_.Candidates(index, now)) {
      const RequestPointer& request = active_.at(ticket);
      std::optional<DeviceReservation> memory =
          device.pool.TryReserve(DeviceTensors::BytesOf(device.engine, request->plan()), part);
      if (!memory.has_value()) {
        if (now - request->ready_ > kPatience) part = DeviceMemoryPool::Part::kKeptForSmall;
        continue;
      }
      queue_.Place(ticket, index, now);
      MoveLocked(*request, RequestState::kRunning);
      ++states_[device.index].placed;
      request->device_ = index;
      request->device_name_ = device.engine.device().name;
      request->device_memory_ = *std::move(memory);
      if (device.engine.unified_memory()) {
        request->device_tensors_ =
            std::make_unique<DeviceTensors>(*DeviceTensors::Create(device.engine, request->plan(), request->memory_));
        queue_.MakeRunnable(ticket);
      } else if (request->device_memory_.bytes() <= options_.inline_copy_bytes) {
        request->copies_inline_ = true;
        queue_.MakeRunnable(ticket);
      } else {
        states_[device.index].to_upload.push_back(request);
        device.upload_changed.NotifyAll();
      }
      placed = true;
      if (devices_.size() > 1) WakeDevicesLocked();  // those that left it to this device first
      break;                                         // the order may be another one now
    }
  }
}

void FairScheduler::RunSlice(Device& device, const RequestPointer& request, int slice) {
  const Plan& plan = request->plan();
  const TimePoint slice_began = clock_.Now();
  const absl::Status status = ComputeSlice(device, *request, slice);
  const TimePoint slice_ended = clock_.Now();
  const double flops = slice < plan.num_slices() ? plan.slice_flops(slice) : 0;
  if (status.ok()) {
    const std::string_view tenant = request->tenant_ == nullptr ? "" : std::string_view(request->tenant_->name());
    metrics_.CountSlice(device.index, tenant, slice_ended - slice_began, flops);
  }

  const bool last = slice + 1 >= plan.num_slices();
  std::vector<Ended> ended;
  std::shared_ptr<RequestListener> listener;
  bool complete = false;
  double done_flops = 0;
  {
    MutexLock lock(mutex_);
    const Duration took = costs_.Credible(device.index, request->computation(), flops, slice_ended - slice_began);
    queue_.End(request->ticket_, took, slice_ended);
    if (slice == 0) {
      request->began_ = slice_began;
      request->timings_.queue = slice_began - request->ready_;
    }
    request->timings_.compute = slice_ended - request->began_;
    if (status.ok()) costs_.Observe(device.index, request->computation(), flops, took);
    request->next_slice_ = slice + 1;
    request->done_flops_ += flops;
    done_flops = request->done_flops_;
    if (StopWorkLocked(request, status, ended)) {
      listener = request->listener_;
      if (last) {  // it makes room for the next one's turn, while its outputs are copied back
        queue_.Remove(request->ticket_);
        request->queued_ = false;
        if (device.engine.unified_memory() || request->copies_inline_) {
          request->busy_ = true;
          complete = true;
        } else {
          states_[device.index].to_download.push_back(request);
          device.download_changed.NotifyAll();
        }
      }
    }
  }
  if (complete) Complete(device, request);
  if (listener != nullptr && !last) listener->OnProgress(done_flops);
  Dispose(std::move(ended));
}

absl::Status FairScheduler::ComputeSlice(Device& device, Request& request, int slice) {
  const Plan& plan = request.plan();
  if (slice >= plan.num_slices()) return absl::OkStatus();
  FLASHBOB_RETURN_IF_ERROR(AllocateOnDevice(device, request));
  DeviceTensors& tensors = *request.device_tensors_;
  absl::Status status;
  if (request.copies_inline_ && slice == 0) {
    status = tensors.CopyMoreInputs(std::numeric_limits<int64_t>::max(), *device.compute).status();
  }
  if (status.ok()) {
    status = device.engine.Launch(plan, slice, tensors.tensors(), tensors.workspace(), *device.compute);
  }
  if (status.ok() && request.copies_inline_ && slice + 1 == plan.num_slices()) {
    status = tensors.CopyOutputs(*device.compute);
  }
  return WaitFor(device, request, *device.compute, status);
}

absl::Status FairScheduler::WaitFor(const Device& device, const Request& request, Stream& stream, absl::Status status) {
  // Nothing may be freed that the device still works on, however what was asked of it ended.
  const absl::Status waited = stream.Synchronize();
  if (absl::IsResourceExhausted(status) && waited.ok()) return ShortOfMemory(device, request, status);
  status.Update(waited);
  return status.ok() ? status : DeviceFailed(device, status);
}

absl::Status FairScheduler::ShortOfMemory(const Device& device, const Request& request, const absl::Status& status) {
  return RetryableError(Reason::kQueueFull,
                        absl::StrCat(device.engine.device().name, " has no ", request.device_memory_.bytes(),
                                     " bytes left: ", std::string(status.message())),
                        std::chrono::seconds(1));
}

absl::Status FairScheduler::AllocateOnDevice(Device& device, Request& request) {
  if (request.device_tensors_ != nullptr) return absl::OkStatus();
  absl::StatusOr<DeviceTensors> tensors = DeviceTensors::Create(device.engine, request.plan(), request.memory_);
  if (tensors.ok()) {
    request.device_tensors_ = std::make_unique<DeviceTensors>(*std::move(tensors));
    return absl::OkStatus();
  }
  if (!absl::IsResourceExhausted(tensors.status())) return DeviceFailed(device, tensors.status());
  return ShortOfMemory(device, request, tensors.status());
}

void FairScheduler::UploadLoop(Device& device) {
  while (true) {
    RequestPointer request;
    {
      MutexLock lock(mutex_);
      std::deque<RequestPointer>& to_upload = states_[device.index].to_upload;
      while (!stopping_ && to_upload.empty()) device.upload_changed.Wait(mutex_);
      if (stopping_) return;
      request = to_upload.front();
      to_upload.pop_front();
      request->busy_ = true;
    }
    const absl::StatusOr<bool> more = UploadPiece(device, *request);
    std::vector<Ended> ended;
    {
      MutexLock lock(mutex_);
      if (StopWorkLocked(request, more.status(), ended)) {
        if (*more) {
          states_[device.index].to_upload.push_back(request);
        } else {
          queue_.MakeRunnable(request->ticket_);
          device.compute_changed.NotifyAll();
        }
      }
    }
    Dispose(std::move(ended));
  }
}

absl::StatusOr<bool> FairScheduler::UploadPiece(Device& device, Request& request) {
  FLASHBOB_RETURN_IF_ERROR(AllocateOnDevice(device, request));
  DeviceTensors& tensors = *request.device_tensors_;
  const int64_t before = tensors.copied_input_bytes();
  const TimePoint began = clock_.Now();
  absl::StatusOr<bool> more = tensors.CopyMoreInputs(kUploadPieceBytes, *device.upload);
  FLASHBOB_RETURN_IF_ERROR(WaitFor(device, request, *device.upload, more.status()));
  metrics_.CountCopy(device.index, Direction::kToDevice, tensors.copied_input_bytes() - before, clock_.Now() - began);
  return more;
}

void FairScheduler::DownloadLoop(Device& device) {
  while (true) {
    RequestPointer request;
    {
      MutexLock lock(mutex_);
      std::deque<RequestPointer>& to_download = states_[device.index].to_download;
      while (!stopping_ && to_download.empty()) device.download_changed.Wait(mutex_);
      if (stopping_) return;
      request = to_download.front();
      to_download.pop_front();
      request->busy_ = true;
    }
    const TimePoint began = clock_.Now();
    const absl::Status status =
        WaitFor(device, *request, *device.download, request->device_tensors_->CopyOutputs(*device.download));
    if (status.ok()) {
      metrics_.CountCopy(device.index, Direction::kToHost, request->computation().output_bytes(), clock_.Now() - began);
      Complete(device, request);
      continue;
    }
    std::vector<Ended> ended;
    {
      MutexLock lock(mutex_);
      StopWorkLocked(request, status, ended);
    }
    Dispose(std::move(ended));
  }
}

void FairScheduler::Complete(Device& device, const RequestPointer& request) {
  // A slow client holds what it has yet to be sent, no more.
  request->device_tensors_.reset();
  request->device_memory_ = DeviceReservation();
  const Computation& computation = request->computation();
  (computation.inputs() - computation.outputs()).ForEach([&](TensorName name) {
    request->memory_.tensors[static_cast<size_t>(name)] = HostBuffer();
  });
  request->memory_.stored = {};
  request->memory_.workspace = HostBuffer();
  std::vector<Ended> ended;
  std::shared_ptr<RequestListener> listener;
  {
    MutexLock lock(mutex_);
    if (StopWorkLocked(request, absl::OkStatus(), ended)) {
      listener = request->listener_;
      active_.erase(request->ticket_);
      --states_[device.index].placed;
      request->device_ = -1;
      MoveLocked(*request, RequestState::kSending);
    }
    WakeDevicesLocked();
  }
  if (listener != nullptr) listener->OnComputed(absl::OkStatus());
  Dispose(std::move(ended));
}

bool FairScheduler::StopWorkLocked(const RequestPointer& request, absl::Status status, std::vector<Ended>& ended) {
  request->busy_ = false;
  status.Update(CheckWanted(*request, "while it ran"));
  if (status.ok()) return true;
  ended.push_back(EndLocked(request, status));
  return false;
}

absl::Status FairScheduler::DeviceFailed(const Device& device, const absl::Status& status) {
  const absl::Status lost =
      RetryableError(Reason::kDeviceLost,
                     absl::StrCat("device ", device.engine.device().name, " failed: ", std::string(status.message())),
                     std::chrono::seconds(5));
  bool first = false;
  {
    MutexLock lock(mutex_);
    first = !any_lost_;
    any_lost_ = true;
    states_[device.index].lost.Update(lost);
    WakeDevicesLocked();
  }
  if (first && options_.on_device_lost) options_.on_device_lost(lost);
  return lost;
}

}  // namespace flashbob::server
