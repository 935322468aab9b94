// FairScheduler's threads of the devices: placing, copying in, slices, copying back.
#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/base/status_macros.h"
#include "server/base/errors.h"
#include "server/scheduler/fair_scheduler.h"

namespace flashbob::server {
namespace {

// So much of one request's inputs is copied before the next one's turn: 1/3 ms at a GPU's usual rate.
constexpr int64_t kUploadPieceBytes = 16 << 20;

// A request that waited so long for device memory gets what becomes free before those that would fit now.
constexpr Duration kPatience = std::chrono::seconds(1);

// "cuda:0, cuda:1", each once.
void AddName(std::string& names, const std::string& name) {
  const std::vector<std::string> listed = absl::StrSplit(names, ", ");
  if (std::find(listed.begin(), listed.end(), name) != listed.end()) return;
  absl::StrAppend(&names, names.empty() ? "" : ", ", name);
}

}  // namespace

void FairScheduler::ComputeLoop(Device& device) {
  while (true) {
    Turn turn;
    {
      MutexLock lock(mutex_);
      while (true) {
        if (stopping_) return;
        if (!states_[device.index].lent) turn = NextTurnLocked(device);
        if (turn.part != nullptr || !turn.ended.empty()) break;
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
  turn.part = active_.at(*next);
  const Plan& plan = turn.part->plan;
  turn.slice = turn.part->next_slice;
  const double flops = turn.slice < plan.num_slices() ? plan.slice_flops(turn.slice) : 0;
  queue_.Begin(*next, costs_.Estimate(device.index, plan.computation(), flops));
  turn.part->busy = true;
  return turn;
}

void FairScheduler::TakeTurn(Device& device, Turn turn) {
  Dispose(std::move(turn.ended));
  if (turn.part != nullptr) RunSlice(device, turn.part, turn.slice);
}

std::vector<FairScheduler::Ended> FairScheduler::SweepLocked(const Device& device) {
  const absl::Status lost = states_[device.index].lost;
  const absl::Status all_lost = AllLostLocked();
  std::map<RequestPointer, absl::Status> unwanted;
  for (const auto& [ticket, part] : active_) {
    if (part->busy) continue;
    absl::Status status;
    if (part->device == static_cast<int>(device.index)) status = lost;
    if (part->device < 0) status = all_lost;
    const bool began = part->request.began_.has_value();
    status.Update(CheckWanted(part->request, began ? "while it ran" : "before it began"));
    if (!status.ok()) unwanted.emplace(part->request.shared_from_this(), status);
  }
  std::vector<Ended> ended;
  for (const auto& [request, status] : unwanted) ended.push_back(EndLocked(request, status));
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
    auto of_memory = DeviceMemoryPool::Part::kAny;
    for (FairQueue::Ticket ticket : queue_.Candidates(index, now)) {
      const PartPointer& part = active_.at(ticket);
      Request& request = part->request;
      std::optional<DeviceReservation> memory =
          device.pool.TryReserve(DeviceTensors::BytesOf(device.engine, part->plan), of_memory);
      if (!memory.has_value()) {
        if (now - request.ready_ > kPatience) of_memory = DeviceMemoryPool::Part::kKeptForSmall;
        continue;
      }
      queue_.Place(ticket, index, now);
      if (request.state_ == RequestState::kReady) MoveLocked(request, RequestState::kRunning);
      ++states_[device.index].placed;
      part->device = index;
      part->device_memory = *std::move(memory);
      AddName(request.device_name_, device.engine.device().name);
      if (device.engine.unified_memory()) {
        queue_.MakeRunnable(ticket);
      } else if (part->device_memory.bytes() <= options_.inline_copy_bytes) {
        part->copies_inline = true;
        queue_.MakeRunnable(ticket);
      } else {
        states_[device.index].to_upload.push_back(part);
        device.upload_changed.NotifyAll();
      }
      placed = true;
      if (devices_.size() > 1) WakeDevicesLocked();  // those that left it to this device first
      break;                                         // the order may be another one now
    }
  }
}

void FairScheduler::RunSlice(Device& device, const PartPointer& part, int slice) {
  const Plan& plan = part->plan;
  Request& request = part->request;
  const TimePoint slice_began = clock_.Now();
  const absl::Status status = ComputeSlice(device, *part, slice);
  const TimePoint slice_ended = clock_.Now();
  const double flops = slice < plan.num_slices() ? plan.slice_flops(slice) : 0;
  if (status.ok()) {
    const std::string_view tenant = request.tenant_ == nullptr ? "" : std::string_view(request.tenant_->name());
    metrics_.CountSlice(device.index, tenant, slice_ended - slice_began, flops);
  }

  const bool last = slice + 1 >= plan.num_slices();
  std::vector<Ended> ended;
  std::shared_ptr<RequestListener> listener;
  bool complete = false;
  double done_flops = 0;
  {
    MutexLock lock(mutex_);
    const Duration took = costs_.Credible(device.index, plan.computation(), flops, slice_ended - slice_began);
    queue_.End(part->ticket, took, slice_ended);
    if (!request.began_.has_value()) {
      request.began_ = slice_began;
      request.timings_.queue = slice_began - request.ready_;
    }
    request.timings_.compute = slice_ended - *request.began_;
    if (status.ok()) costs_.Observe(device.index, plan.computation(), flops, took);
    part->next_slice = slice + 1;
    part->done_flops += flops;
    request.done_flops_ += flops;
    done_flops = request.done_flops_;
    if (StopWorkLocked(*part, status, ended)) {
      listener = request.listener_;
      if (last) {  // it makes room for the next one's turn, while its outputs are copied back
        queue_.Remove(part->ticket);
        part->queued = false;
        if (device.engine.unified_memory() || part->copies_inline) {
          part->busy = true;
          complete = true;
        } else {
          states_[device.index].to_download.push_back(part);
          device.download_changed.NotifyAll();
        }
      }
    }
  }
  if (complete) Complete(part);
  if (listener != nullptr && !last) listener->OnProgress(done_flops);
  Dispose(std::move(ended));
}

absl::Status FairScheduler::ComputeSlice(Device& device, Part& part, int slice) {
  const Plan& plan = part.plan;
  if (slice >= plan.num_slices()) return absl::OkStatus();
  const HangWatch::Work work(device.hang_watch);
  FLASHBOB_RETURN_IF_ERROR(AllocateOnDevice(device, part));
  DeviceTensors& tensors = *part.device_tensors;
  absl::Status status;
  if (part.copies_inline && slice == 0) status = tensors.CopyInputsTogether(*device.compute);
  if (status.ok()) {
    status = device.engine.Launch(plan, slice, tensors.tensors(), tensors.workspace(), *device.compute);
  }
  if (status.ok() && part.copies_inline && slice + 1 == plan.num_slices()) {
    status = tensors.CopyOutputsTogether(*device.compute);
  }
  return WaitFor(device, part, *device.compute, status);
}

absl::Status FairScheduler::WaitFor(const Device& device, const Part& part, Stream& stream, absl::Status status) {
  // Nothing may be freed that the device still works on, however what was asked of it ended.
  const absl::Status waited = stream.Synchronize();
  if (absl::IsResourceExhausted(status) && waited.ok()) return ShortOfMemory(device, part, status);
  status.Update(waited);
  return status.ok() ? status : DeviceFailed(device, status);
}

absl::Status FairScheduler::ShortOfMemory(const Device& device, const Part& part, const absl::Status& status) {
  return RetryableError(Reason::kQueueFull,
                        absl::StrCat(device.engine.device().name, " has no ", part.device_memory.bytes(),
                                     " bytes left: ", std::string(status.message())),
                        std::chrono::seconds(1));
}

absl::Status FairScheduler::AllocateOnDevice(Device& device, Part& part) {
  if (part.device_tensors != nullptr) return absl::OkStatus();
  const Request& request = part.request;
  absl::StatusOr<DeviceTensors> tensors =
      DeviceTensors::Create(device.engine, part.plan, request.memory_, request.computation().problem(), part.shard);
  if (tensors.ok()) {
    part.device_tensors = std::make_unique<DeviceTensors>(*std::move(tensors));
    return absl::OkStatus();
  }
  if (!absl::IsResourceExhausted(tensors.status())) return DeviceFailed(device, tensors.status());
  return ShortOfMemory(device, part, tensors.status());
}

void FairScheduler::UploadLoop(Device& device) {
  while (true) {
    PartPointer part;
    {
      MutexLock lock(mutex_);
      std::deque<PartPointer>& to_upload = states_[device.index].to_upload;
      while (!stopping_ && to_upload.empty()) device.upload_changed.Wait(mutex_);
      if (stopping_) return;
      part = to_upload.front();
      to_upload.pop_front();
      part->busy = true;
    }
    const absl::StatusOr<bool> more = UploadPiece(device, *part);
    std::vector<Ended> ended;
    {
      MutexLock lock(mutex_);
      if (StopWorkLocked(*part, more.status(), ended)) {
        if (*more) {
          states_[device.index].to_upload.push_back(part);
        } else {
          queue_.MakeRunnable(part->ticket);
          device.compute_changed.NotifyAll();
        }
      }
    }
    Dispose(std::move(ended));
  }
}

absl::StatusOr<bool> FairScheduler::UploadPiece(Device& device, Part& part) {
  const HangWatch::Work work(device.hang_watch);
  FLASHBOB_RETURN_IF_ERROR(AllocateOnDevice(device, part));
  DeviceTensors& tensors = *part.device_tensors;
  const int64_t before = tensors.copied_input_bytes();
  const TimePoint began = clock_.Now();
  absl::StatusOr<bool> more = tensors.CopyMoreInputs(kUploadPieceBytes, *device.upload);
  FLASHBOB_RETURN_IF_ERROR(WaitFor(device, part, *device.upload, more.status()));
  metrics_.CountCopy(device.index, Direction::kToDevice, tensors.copied_input_bytes() - before, clock_.Now() - began);
  return more;
}

absl::Status FairScheduler::DownloadOutputs(Device& device, const Part& part) {
  const HangWatch::Work work(device.hang_watch);
  return WaitFor(device, part, *device.download, part.device_tensors->CopyOutputs(*device.download));
}

void FairScheduler::DownloadLoop(Device& device) {
  while (true) {
    PartPointer part;
    {
      MutexLock lock(mutex_);
      std::deque<PartPointer>& to_download = states_[device.index].to_download;
      while (!stopping_ && to_download.empty()) device.download_changed.Wait(mutex_);
      if (stopping_) return;
      part = to_download.front();
      to_download.pop_front();
      part->busy = true;
    }
    const TimePoint began = clock_.Now();
    const absl::Status status = DownloadOutputs(device, *part);
    if (status.ok()) {
      metrics_.CountCopy(device.index, Direction::kToHost, part->plan.computation().output_bytes(),
                         clock_.Now() - began);
      Complete(part);
      continue;
    }
    std::vector<Ended> ended;
    {
      MutexLock lock(mutex_);
      StopWorkLocked(*part, status, ended);
    }
    Dispose(std::move(ended));
  }
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

void FairScheduler::LookForHangs() {
  for (const std::unique_ptr<Device>& device : devices_) {
    if (!device->hang_watch.Look()) continue;
    const absl::Status hangs = absl::UnavailableError("it hangs at work of some hundredths of a second");
    GiveUp(*device, DeviceFailed(*device, hangs));
  }
}

void FairScheduler::GiveUp(const Device& device, const absl::Status& lost) {
  std::vector<Ended> ended;
  {
    MutexLock lock(mutex_);
    ended = SweepLocked(device);
    std::set<RequestPointer> hang;
    for (const auto& [ticket, part] : active_) {
      if (part->busy && part->device == static_cast<int>(device.index)) hang.insert(part->request.shared_from_this());
    }
    for (const RequestPointer& request : hang) {
      request->withdrawn_ = true;
      Ended& end = ended.emplace_back();
      end.freed = ReleaseLocked(request);
      end.listener = std::move(request->listener_);
      end.status = lost;
    }
  }
  Dispose(std::move(ended));
}

}  // namespace flashbob::server
