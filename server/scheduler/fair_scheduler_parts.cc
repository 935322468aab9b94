// FairScheduler's parts of requests: how many there are, and how they begin and end together.
#include <algorithm>
#include <utility>

#include "server/scheduler/fair_scheduler.h"

namespace flashbob::server {

int FairScheduler::PartsWantedLocked(const Computation& computation) const {
  const auto usable = static_cast<int>(
      std::count_if(states_.begin(), states_.end(), [](const DeviceState& state) { return state.lost.ok(); }));
  // Where a shard begins and ends may change the order of sums, and how busy devices are must not change the bits of
  // who asked for the same ones each time.
  if (usable < 2 || computation.problem().deterministic()) return 1;
  // Where host memory is device memory, a shard's tensors would have to be contiguous there.
  if (devices_.front()->engine.unified_memory()) return 1;
  if (options_.split_seconds == 0) return usable;
  const Duration own = costs_.Estimate(computation, computation.flops());
  if (ToSeconds(own) < options_.split_seconds || AheadLocked().wait > own) return 1;
  return static_cast<int>(std::min(2 * ToSeconds(own) / options_.split_seconds, static_cast<double>(usable)));
}

std::vector<std::unique_ptr<Part>> FairScheduler::MakeParts(Request& request, int most) const {
  const Device& device = *devices_.front();  // they are alike
  std::vector<std::unique_ptr<Part>> parts;
  const std::vector<Shard> shards = CutIntoShards(request.computation().problem(), most);
  while (shards.size() > 1 && parts.size() < shards.size()) {
    const Shard& shard = shards[parts.size()];
    const absl::StatusOr<Computation> computation = ComputationOf(request.computation(), shard);
    if (!computation.ok()) break;
    absl::StatusOr<std::unique_ptr<const Plan>> plan = device.engine.MakePlan(*computation);
    if (!plan.ok() || DeviceTensors::BytesOf(device.engine, **plan) > device.pool.LargestRequest()) break;
    parts.push_back(std::make_unique<Part>(request, shard, *std::move(plan)));
  }
  if (parts.size() == shards.size()) return parts;
  // What is not split, or not served in parts, is served whole.
  parts.clear();
  parts.push_back(std::make_unique<Part>(request));
  return parts;
}

void FairScheduler::Ready(const RequestPointer& request) {
  int most = 1;
  {
    MutexLock lock(mutex_);
    if (request->state_ != RequestState::kReceiving) return;
    most = PartsWantedLocked(request->computation());
  }
  std::vector<std::unique_ptr<Part>> parts = MakeParts(*request, most);

  Device* device = nullptr;
  Turn turn;
  {
    MutexLock lock(mutex_);
    if (request->state_ != RequestState::kReceiving) return;  // released meanwhile
    EnqueueLocked(request, std::move(parts));
    device = DeviceToLendLocked(*request);
    if (device == nullptr) {
      WakeDevicesLocked();
      return;
    }
    states_[device->index].lent = true;
    turn = NextTurnLocked(*device);
  }
  TakeTurn(*device, std::move(turn));
  MutexLock lock(mutex_);
  states_[device->index].lent = false;
  WakeDevicesLocked();
}

void FairScheduler::EnqueueLocked(const RequestPointer& request, std::vector<std::unique_ptr<Part>> parts) {
  request->ready_ = clock_.Now();
  request->timings_.receive = request->ready_ - request->received_;
  MoveLocked(*request, RequestState::kReady);
  request->parts_ = std::move(parts);
  if (request->parts_.size() > 1) metrics_.CountSplit(request->parts_.size());
  FairQueue::Job job;
  if (request->tenant_ != nullptr) {
    job.tenant = request->tenant_->name();
    job.weight = request->tenant_->settings().weight;
    job.priority = request->tenant_->settings().priority;
  }
  job.group = next_ticket_;
  for (const auto& part : request->parts_) {
    part->ticket = next_ticket_++;
    part->queued = true;
    active_.emplace(part->ticket, PartPointer(request, part.get()));
    job.estimate = LeftLocked(*part);
    queue_.Enqueue(part->ticket, job, request->ready_);
  }
}

FairScheduler::Device* FairScheduler::DeviceToLendLocked(const Request& request) const {
  if (request.parts_.size() > 1) return nullptr;
  int placed = 0;
  for (const DeviceState& state : states_) placed += state.placed;
  const Plan& plan = request.plan();
  if (static_cast<size_t>(placed) + 1 < active_.size() || plan.num_slices() > 1) return nullptr;
  for (const std::unique_ptr<Device>& device : devices_) {
    const DeviceState& state = states_[device->index];
    if (state.placed > 0 || state.lent || !state.lost.ok() || device->engine.unified_memory()) continue;
    const Duration estimate = costs_.Estimate(device->index, plan.computation(), plan.computation().flops());
    const bool short_enough =
        estimate <= options_.within_ready && DeviceTensors::BytesOf(device->engine, plan) <= options_.inline_copy_bytes;
    return short_enough ? device.get() : nullptr;
  }
  return nullptr;
}

FairScheduler::FreedOnDevice FairScheduler::TakeOffLocked(Part& part) {
  if (std::exchange(part.queued, false)) queue_.Remove(part.ticket);
  if (part.device >= 0) {
    DeviceState& state = states_[static_cast<size_t>(part.device)];
    --state.placed;
    const auto is_it = [&](const PartPointer& other) { return other.get() == &part; };
    std::erase_if(state.to_upload, is_it);
    std::erase_if(state.to_download, is_it);
    part.device = -1;
  }
  active_.erase(part.ticket);
  return {std::move(part.device_memory), std::move(part.device_tensors)};
}

void FairScheduler::Complete(const PartPointer& part) {
  const RequestPointer request = part->request.shared_from_this();
  part->device_tensors.reset();
  part->device_memory = DeviceReservation();
  std::vector<Ended> ended;
  bool last = false;
  {
    MutexLock lock(mutex_);
    part->computed = true;
    last = std::all_of(request->parts_.begin(), request->parts_.end(), [](const auto& each) { return each->computed; });
    // What it held is free already.
    if (!last && StopWorkLocked(*part, absl::OkStatus(), ended)) static_cast<void>(TakeOffLocked(*part));
    WakeDevicesLocked();
  }
  if (last) {
    // A slow client holds what it has yet to be sent, no more.
    const Computation& computation = request->computation();
    (computation.inputs() - computation.outputs()).ForEach([&](TensorName name) {
      request->memory_.tensors[static_cast<size_t>(name)] = HostBuffer();
    });
    request->memory_.stored = {};
    request->memory_.workspace = HostBuffer();
    std::shared_ptr<RequestListener> listener;
    {
      MutexLock lock(mutex_);
      if (StopWorkLocked(*part, absl::OkStatus(), ended)) {
        listener = request->listener_;
        static_cast<void>(TakeOffLocked(*part));
        MoveLocked(*request, RequestState::kSending);
      }
      WakeDevicesLocked();
    }
    if (listener != nullptr) listener->OnComputed(absl::OkStatus());
  }
  Dispose(std::move(ended));
}

bool FairScheduler::StopWorkLocked(Part& part, absl::Status status, std::vector<Ended>& ended) {
  part.busy = false;
  Request& request = part.request;
  status.Update(CheckWanted(request, "while it ran"));
  if (status.ok() && request.failure_.ok()) return true;
  ended.push_back(EndLocked(request.shared_from_this(), status));
  return false;
}

}  // namespace flashbob::server
