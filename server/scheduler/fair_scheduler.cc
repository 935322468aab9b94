#include "server/scheduler/fair_scheduler.h"

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

// For so long smaller requests pass one that waits for host memory as they fit; from then on what they may hold is
// bounded, so that what becomes free is its own.
constexpr Duration kHostPatience = std::chrono::seconds(1);

// Who waited so long for host memory is first in line, whatever its tenant has.
constexpr Duration kLongWait = std::chrono::seconds(10);

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

// Visits the tensors that are not stored.
template <typename Visitor>
void ForEachTensor(const Computation& computation, const StoredInputs& stored, Visitor visit) {
  (computation.inputs() | computation.outputs()).ForEach([&](TensorName name) {
    if (stored[static_cast<size_t>(name)] == nullptr) visit(name, computation.problem().NumBytes(name));
  });
}

template <typename Devices, typename Guess>
std::vector<double> FirstGuesses(const Devices& devices, Guess guess) {
  std::vector<double> guesses;
  for (const auto& device : devices) guesses.push_back(guess(device));
  return guesses;
}

}  // namespace

absl::StatusOr<std::unique_ptr<FairScheduler>> FairScheduler::Create(const std::vector<Engine*>& engines,
                                                                     HostMemoryPool& pool, const Clock& clock,
                                                                     ServerMetrics& metrics, Options options) {
  std::vector<std::unique_ptr<Device>> devices;
  for (Engine* engine : engines) {
    const int64_t all = engine->device().usable_bytes;
    const int64_t bytes = options.device_memory_bytes > 0 ? std::min(options.device_memory_bytes, all) : all;
    auto device = std::make_unique<Device>(devices.size(), *engine, bytes, options.hang_looks);
    for (std::unique_ptr<Stream>* stream : {&device->upload, &device->compute, &device->download}) {
      FLASHBOB_ASSIGN_OR_RETURN(*stream, engine->CreateStream());
    }
    devices.push_back(std::move(device));
  }
  std::unique_ptr<FairScheduler> scheduler(
      new FairScheduler(pool, clock, metrics, std::move(options), std::move(devices)));
  scheduler->StartThreads();
  return scheduler;
}

FairScheduler::FairScheduler(HostMemoryPool& pool, const Clock& clock, ServerMetrics& metrics, Options options,
                             std::vector<std::unique_ptr<Device>> devices)
    : pool_(pool),
      clock_(clock),
      metrics_(metrics),
      options_(std::move(options)),
      devices_(std::move(devices)),
      queue_(static_cast<int>(devices_.size()), options_.fairness),
      costs_(FirstGuesses(devices_, [](const auto& device) { return device->engine.device().flops_per_second; })),
      states_(devices_.size()) {}

void FairScheduler::StartThreads() {
  admit_thread_ = std::thread([this] { AdmitLoop(); });
  for (const std::unique_ptr<Device>& owned : devices_) {
    Device& device = *owned;
    device.threads.emplace_back([this, &device] { ComputeLoop(device); });
    if (device.engine.unified_memory()) continue;
    device.threads.emplace_back([this, &device] { UploadLoop(device); });
    device.threads.emplace_back([this, &device] { DownloadLoop(device); });
  }
}

FairScheduler::~FairScheduler() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    admit_changed_.NotifyAll();
    pool_.WakeWaiters();
    for (const auto& device : devices_) {
      device->compute_changed.NotifyAll();
      device->upload_changed.NotifyAll();
      device->download_changed.NotifyAll();
    }
  }
  admit_thread_.join();
  for (const auto& device : devices_) {
    for (std::thread& thread : device->threads) thread.join();
  }
}

absl::StatusOr<Submitted> FairScheduler::Submit(Submission submission) {
  const TimePoint now = clock_.Now();
  // Before the plan: one for a problem that can never fit may itself be huge.
  const Computation& computation = submission.computation;
  int64_t tensor_bytes = 0;
  ForEachTensor(computation, submission.stored,
                [&](TensorName, int64_t bytes) { tensor_bytes += HostMemoryPool::BlockBytes(bytes); });
  if (tensor_bytes > pool_.limit_bytes()) {
    return Error(Reason::kTooLarge,
                 absl::StrCat("inputs of ", computation.input_bytes(), " bytes and outputs of ",
                              computation.output_bytes(), " do not fit into the ", pool_.limit_bytes(),
                              " bytes of host memory that this server has for requests"),
                 {{"needed_bytes", tensor_bytes}, {"limit_bytes", pool_.limit_bytes()}});
  }
  absl::StatusOr<std::unique_ptr<const Plan>> plan = devices_.front()->engine.MakePlan(computation);
  if (absl::IsResourceExhausted(plan.status()) || absl::IsFailedPrecondition(plan.status())) {
    return Error(Reason::kTooLarge, std::string(plan.status().message()));
  }
  if (!plan.ok()) return AsSpecError(plan.status());
  FLASHBOB_RETURN_IF_ERROR(CheckSize(computation, **plan, submission.stored));

  const auto request =
      std::make_shared<Request>(std::move(submission.request_id), *std::move(plan), now, submission.deadline);
  request->host_bytes_ = HostBytes(request->plan(), submission.stored);
  request->tenant_ = std::move(submission.tenant);
  request->listener_ = std::move(submission.listener);
  request->memory_.stored = submission.stored;
  if (request->tenant_ != nullptr) {
    FLASHBOB_ASSIGN_OR_RETURN(request->hold_, request->tenant_->Hold(request->host_bytes_, 1));
  }
  const bool at_once = AllocatesAtOnce(request->plan(), submission.stored);
  std::optional<Reservation> reservation;
  {
    MutexLock lock(mutex_);
    FLASHBOB_RETURN_IF_ERROR(CheckQueueLocked(*request));
    ++in_state_[static_cast<size_t>(RequestState::kValidated)];
    if (at_once && waiting_.empty()) reservation = pool_.TryReserve(request->host_bytes_);
    if (!reservation.has_value()) {
      waiting_.push_back(request);
      admit_changed_.NotifyAll();
      pool_.WakeWaiters();
      return Submitted{request, false};
    }
    AdmitLocked(*request);
  }
  absl::StatusOr<RequestMemory> memory = AllocateMemory(request->plan(), submission.stored, *std::move(reservation));
  Freed freed;
  {
    MutexLock lock(mutex_);
    if (memory.ok()) {
      request->memory_ = *std::move(memory);
      MoveLocked(*request, RequestState::kReceiving);
      return Submitted{request, true};
    }
    freed = ReleaseLocked(request);
  }
  Dispose(std::move(freed));
  return memory.status();
}

void FairScheduler::Release(const std::shared_ptr<Request>& request) {
  Freed freed;
  std::shared_ptr<RequestListener> listener;  // destroyed once unlocked
  {
    MutexLock lock(mutex_);
    if (request->state_ == RequestState::kReleased) return;
    request->withdrawn_ = true;
    listener = std::move(request->listener_);
    freed = ReleaseLocked(request);
  }
  Dispose(std::move(freed));
}

QueueEstimate FairScheduler::Ahead() const {
  MutexLock lock(mutex_);
  return AheadLocked();
}

RequestView FairScheduler::View(const Request& request) const {
  MutexLock lock(mutex_);
  RequestView view;
  view.state = request.state_;
  view.host_bytes = request.host_bytes_;
  for (const auto& part : request.parts_) {
    view.slices_done += part->next_slice;
    view.slices += part->plan.num_slices();
  }
  view.device = request.device_name_;
  return view;
}

std::array<int64_t, kNumRequestStates> FairScheduler::CountByState() const {
  MutexLock lock(mutex_);
  return in_state_;
}

std::vector<DeviceUse> FairScheduler::Devices() const {
  std::vector<DeviceUse> uses;
  for (const auto& device : devices_) uses.push_back({&device->engine, device->pool.GetUse()});
  return uses;
}

void FairScheduler::Drain() {
  MutexLock lock(mutex_);
  draining_ = true;
}

void FairScheduler::AdmitLoop() {
  while (true) {
    RequestPointer request;
    StoredInputs stored;
    std::optional<Reservation> reservation;
    const uint64_t changes = pool_.Changes();
    {
      MutexLock lock(mutex_);
      while (!stopping_ && waiting_.empty()) admit_changed_.Wait(mutex_);
      if (stopping_) return;
      request = NextToAdmitLocked(reservation);
      if (request != nullptr) stored = request->memory_.stored;
    }
    if (request == nullptr) {
      pool_.WaitForChange(changes);  // memory is given back, or a request comes or goes
      continue;
    }
    absl::StatusOr<RequestMemory> memory = AllocateMemory(request->plan(), stored, *std::move(reservation));
    std::shared_ptr<RequestListener> listener;
    std::vector<Ended> ended;
    {
      MutexLock lock(mutex_);
      if (request->state_ != RequestState::kValidated) continue;  // released meanwhile
      std::erase(waiting_, request);
      if (memory.ok()) {
        AdmitLocked(*request);
        request->memory_ = *std::move(memory);
        MoveLocked(*request, RequestState::kReceiving);
        listener = request->listener_;
      } else {
        ended.push_back(EndLocked(request, memory.status()));
      }
    }
    if (listener != nullptr) listener->OnAdmitted();
    Dispose(std::move(ended));
  }
}

absl::Status FairScheduler::CheckSize(const Computation& computation, const Plan& plan,
                                      const StoredInputs& stored) const {
  const int64_t host_bytes = HostBytes(plan, stored);
  const auto workspace_bytes = static_cast<int64_t>(plan.workspace_bytes());
  const std::string parts = absl::StrCat("inputs of ", computation.input_bytes(), " bytes, outputs of ",
                                         computation.output_bytes(), " and a workspace of ", workspace_bytes);
  if (host_bytes > pool_.limit_bytes()) {
    return Error(Reason::kTooLarge,
                 absl::StrCat(parts, " take ", host_bytes, " bytes of host memory; this server has ",
                              pool_.limit_bytes(), " for requests"),
                 {{"needed_bytes", host_bytes}, {"limit_bytes", pool_.limit_bytes()}});
  }
  const Device& device = *devices_.front();  // they are alike
  const int64_t device_bytes = DeviceTensors::BytesOf(device.engine, plan);
  if (device_bytes > device.pool.LargestRequest()) {
    return Error(Reason::kTooLarge,
                 absl::StrCat(parts, " take ", device_bytes, " bytes of device memory; ", device.engine.device().name,
                              " has ", device.pool.LargestRequest(), " for one request"),
                 {{"needed_bytes", device_bytes}, {"limit_bytes", device.pool.LargestRequest()}});
  }
  return absl::OkStatus();
}

int64_t FairScheduler::HostBytes(const Plan& plan, const StoredInputs& stored) const {
  int64_t total = 0;
  int64_t largest = 0;
  ForEachTensor(plan.computation(), stored, [&](TensorName, int64_t bytes) {
    total += HostMemoryPool::BlockBytes(bytes);
    largest = std::max(largest, bytes);
  });
  if (devices_.front()->engine.unified_memory())
    total += HostMemoryPool::BlockBytes(static_cast<int64_t>(plan.workspace_bytes()));
  return total + std::min(largest, options_.max_message_bytes);
}

absl::Status FairScheduler::CheckQueueLocked(const Request& request) const {
  if (draining_) return Draining();
  FLASHBOB_RETURN_IF_ERROR(AllLostLocked());
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
    const Duration own = costs_.Estimate(computation, computation.flops()) / PartsWantedLocked(computation);
    const Duration wait = WaitLocked(request, own);
    const Duration left = request.deadline() - clock_.Now();
    if ((wait + own) / kOptimism > left) {
      return Error(Reason::kDeadline, absl::StrCat("the deadline is in ", Seconds(left), "; what is ahead takes about ",
                                                   Seconds(wait), " and this request ", Seconds(own)));
    }
  }
  return absl::OkStatus();
}

bool FairScheduler::AllocatesAtOnce(const Plan& plan, const StoredInputs& stored) const {
  if (devices_.front()->engine.unified_memory()) return true;
  std::vector<int64_t> sizes;
  ForEachTensor(plan.computation(), stored, [&](TensorName, int64_t bytes) { sizes.push_back(bytes); });
  return pool_.HasCached(sizes);
}

absl::StatusOr<RequestMemory> FairScheduler::AllocateMemory(const Plan& plan, const StoredInputs& stored,
                                                            Reservation reservation) {
  RequestMemory memory;
  memory.stored = stored;
  absl::Status status;
  ForEachTensor(plan.computation(), stored, [&](TensorName name, int64_t bytes) {
    if (!status.ok()) return;
    absl::StatusOr<HostBuffer> buffer = pool_.Allocate(reservation, bytes);
    status = buffer.status();
    if (buffer.ok()) memory.tensors[static_cast<size_t>(name)] = *std::move(buffer);
  });
  // Page-locked memory comes from a device, too: there its loss may show first.
  if (!status.ok() && !absl::IsResourceExhausted(status)) return DeviceFailed(*devices_.front(), status);
  FLASHBOB_RETURN_IF_ERROR(status);
  if (devices_.front()->engine.unified_memory()) {
    FLASHBOB_ASSIGN_OR_RETURN(memory.workspace,
                              pool_.Allocate(reservation, static_cast<int64_t>(plan.workspace_bytes())));
  }
  memory.transit = std::move(reservation);
  return memory;
}

std::shared_ptr<Request> FairScheduler::NextToAdmitLocked(std::optional<Reservation>& reservation) {
  const std::vector<RequestPointer> line = InLineLocked();
  first_in_line_ = line.front();
  std::vector<const Tenant*> before;  // nobody passes an older request of the same tenant
  for (const RequestPointer& request : line) {
    const Tenant* const tenant = request->tenant_.get();
    const bool first = request == first_in_line_;
    if (!first && std::find(before.begin(), before.end(), tenant) != before.end()) continue;
    if (first || MayPassLocked(*request, *first_in_line_)) reservation = pool_.TryReserveFirst(request->host_bytes_);
    if (!reservation.has_value()) {
      before.push_back(tenant);
      continue;
    }
    if (first) {
      first_in_line_.reset();
    } else {
      request->passed_ = true;
      passed_bytes_ += request->host_bytes_;
    }
    return request;
  }
  return nullptr;
}

std::vector<std::shared_ptr<Request>> FairScheduler::InLineLocked() const {
  const TimePoint now = clock_.Now();
  std::vector<std::pair<double, RequestPointer>> by_share;
  for (const RequestPointer& request : waiting_) {  // oldest first
    const Tenant* const tenant = request->tenant_.get();
    const auto admitted = admitted_bytes_.find(tenant);
    const double bytes = admitted == admitted_bytes_.end() ? 0 : static_cast<double>(admitted->second);
    double share = bytes / (tenant == nullptr ? 1 : tenant->settings().weight);
    if (now - request->received_ > kLongWait) share = -1;
    if (request == first_in_line_) share = -2;
    by_share.emplace_back(share, request);
  }
  std::stable_sort(by_share.begin(), by_share.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<RequestPointer> line;
  for (auto& [share, request] : by_share) line.push_back(std::move(request));
  return line;
}

bool FairScheduler::MayPassLocked(const Request& request, const Request& first) const {
  if (clock_.Now() - first.received_ <= kHostPatience) return true;
  const int64_t for_passing = pool_.limit_bytes() / 8;
  return first.host_bytes_ <= pool_.limit_bytes() - for_passing && passed_bytes_ + request.host_bytes_ <= for_passing;
}

absl::Status FairScheduler::CheckWanted(const Request& request, const char* when) const {
  if (request.withdrawn_) return absl::CancelledError("the caller left");
  const TimePoint now = clock_.Now();
  if (now >= request.deadline()) {
    return Error(Reason::kDeadline, absl::StrCat("the deadline passed ", when, ", ", Seconds(now - request.received_),
                                                 " after the request came"));
  }
  return absl::OkStatus();
}

void FairScheduler::AdmitLocked(Request& request) {
  request.admitted_ = true;
  admitted_bytes_[request.tenant_.get()] += request.host_bytes_;
}

void FairScheduler::MoveLocked(Request& request, RequestState to) {
  --in_state_[static_cast<size_t>(request.state_)];
  request.state_ = to;
  if (to != RequestState::kReleased) ++in_state_[static_cast<size_t>(to)];
}

FairScheduler::Freed FairScheduler::ReleaseLocked(const RequestPointer& request) {
  Freed freed;
  bool busy = false;
  for (const auto& part : request->parts_) {
    busy = busy || part->busy;
    if (!part->busy) freed.on_devices.push_back(TakeOffLocked(*part));
  }
  if (busy) return freed;
  if (request->state_ == RequestState::kValidated) {
    std::erase(waiting_, request);
    if (first_in_line_ == request) first_in_line_.reset();
    pool_.WakeWaiters();
  }
  if (std::exchange(request->passed_, false)) passed_bytes_ -= request->host_bytes_;
  if (std::exchange(request->admitted_, false)) {
    // Beside one that takes no bytes at all, its entry may be gone already.
    const auto admitted = admitted_bytes_.find(request->tenant_.get());
    if (admitted != admitted_bytes_.end() && (admitted->second -= request->host_bytes_) == 0) {
      admitted_bytes_.erase(admitted);
    }
  }
  MoveLocked(*request, RequestState::kReleased);
  freed.memory = std::move(request->memory_);
  freed.hold = std::move(request->hold_);
  return freed;
}

FairScheduler::Ended FairScheduler::EndLocked(const RequestPointer& request, const absl::Status& status) {
  request->failure_.Update(status);
  Ended ended;
  ended.freed = ReleaseLocked(request);
  if (request->state_ != RequestState::kReleased) return ended;
  ended.listener = std::move(request->listener_);
  ended.status = request->failure_;
  return ended;
}

void FairScheduler::Dispose(Freed freed) {
  { const Freed destroyed = std::move(freed); }
  MutexLock lock(mutex_);  // a device that has just found too little memory must hear of it
  WakeDevicesLocked();
}

void FairScheduler::Dispose(std::vector<Ended> ended) {
  for (Ended& request : ended) {
    Dispose(std::move(request.freed));
    if (request.listener != nullptr) request.listener->OnComputed(request.status);
  }
}

Duration FairScheduler::LeftLocked(const Part& part) const {
  const Computation& computation = part.plan.computation();
  return costs_.Estimate(computation, std::max(computation.flops() - part.done_flops, 0.0));
}

QueueEstimate FairScheduler::AheadLocked() const {
  QueueEstimate ahead;
  ahead.requests = CountLocked(RequestState::kReady) + CountLocked(RequestState::kRunning);
  for (const auto& [ticket, part] : active_) ahead.wait += LeftLocked(*part);
  ahead.wait /= static_cast<int>(devices_.size());
  return ahead;
}

Duration FairScheduler::WaitLocked(const Request& request, Duration own) const {
  // Those of its tenant take turns with it until the shorter one is done; then the tenant has its share.
  Duration of_tenant = {};
  std::map<const Tenant*, double> weights;
  const auto weight_of = [](const Tenant* tenant) { return tenant == nullptr ? 1.0 : tenant->settings().weight; };
  weights[request.tenant_.get()] = weight_of(request.tenant_.get());
  for (const auto& [ticket, part] : active_) {
    const Tenant* const tenant = part->request.tenant_.get();
    weights[tenant] = weight_of(tenant);
    if (tenant == request.tenant_.get()) of_tenant += std::min(LeftLocked(*part), own);
  }
  double all = 0;
  for (const auto& [tenant, weight] : weights) all += weight;
  const double share = weight_of(request.tenant_.get()) / all;
  const double seconds = (ToSeconds(of_tenant) + ToSeconds(own)) / share / static_cast<double>(devices_.size());
  return std::max(FromSeconds(seconds) - own, Duration(0));
}

absl::Status FairScheduler::AllLostLocked() const {
  for (const DeviceState& state : states_) {
    if (state.lost.ok()) return absl::OkStatus();
  }
  return states_.front().lost;
}

void FairScheduler::WakeDevicesLocked() {
  if (active_.empty()) return;  // a thread that finds nothing to do only takes the lock from one that has
  for (const auto& device : devices_) {
    if (!states_[device->index].lent) device->compute_changed.NotifyAll();
  }
}

}  // namespace flashbob::server
