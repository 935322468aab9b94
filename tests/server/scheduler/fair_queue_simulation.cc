#include "tests/server/scheduler/fair_queue_simulation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"

namespace flashbob::server {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kCopyBytesPerSecond = 40e9;
constexpr int64_t kCopyPiece = 16 << 20;  // large inputs take turns with small ones

}  // namespace

Simulation::Simulation(uint64_t seed, std::vector<SimulatedTenant> tenants, const Devices& devices)
    : random_(seed),
      tenants_(std::move(tenants)),
      split_seconds_(devices.split_seconds),
      queue_(devices.count, FairQueue::Options()) {
  for (int i = 0; i < devices.count; ++i) devices_.emplace_back(devices.memory_bytes);
  for (size_t tenant = 0; tenant < tenants_.size(); ++tenant) {
    next_arrival_.push_back(tenants_[tenant].in_flight > 0 ? kNever : 0);
    for (int i = 0; i < tenants_[tenant].in_flight; ++i) Arrive(tenant);
  }
}

std::string Simulation::Run(double seconds) {
  const double until = now_ + seconds;
  while (now_ < until) {
    const std::string wrong = Advance(until);
    if (!wrong.empty()) return wrong;
  }
  return "";
}

std::string Simulation::Drain() {
  arrivals_ = false;
  std::fill(next_arrival_.begin(), next_arrival_.end(), kNever);
  double left = 0;
  for (const Request& request : requests_) left += request.seconds - request.done_seconds;
  // Nothing but device time, and the copies that nothing hides, can keep it from being done.
  const double until = now_ + left * 1.1 + 10;
  while (finished_ < static_cast<int64_t>(requests_.size())) {
    if (now_ >= until) {
      return absl::StrCat(requests_.size() - finished_, " of ", requests_.size(), " requests starve");
    }
    const std::string wrong = Advance(until);
    if (!wrong.empty()) return wrong;
  }
  for (const Device& device : devices_) {
    if (device.pool.GetUse().reserved_bytes != 0) return "memory leaked";
  }
  return "";
}

double Simulation::Served(size_t tenant, double begin, double end, std::optional<int> device) const {
  auto service = std::lower_bound(services_.begin(), services_.end(), begin,
                                  [](const Service& s, double time) { return s.end < time; });
  double served = 0;
  for (; service != services_.end() && service->end < end + 2 * kSlice; ++service) {  // in the order of their ends
    if (service->tenant != tenant || static_cast<int>(service->device) != device.value_or(service->device)) continue;
    served += std::max(std::min(service->end, end) - std::max(service->begin, begin), 0.0);
  }
  return served;
}

void Simulation::Arrive(size_t index) {
  const SimulatedTenant& tenant = tenants_[index];
  Request request;
  request.tenant = index;
  std::uniform_real_distribution<double> log_seconds(std::log(tenant.min_seconds), std::log(tenant.max_seconds));
  request.seconds = std::exp(log_seconds(random_));
  // Long requests are large ones: 1 ms takes about 4 MiB, 30 s about 700 MiB.
  std::uniform_real_distribution<double> spread(0.5, 2.0);
  request.bytes = static_cast<int64_t>(4e6 * std::sqrt(request.seconds / 0.001) * spread(random_));
  request.priority = std::uniform_int_distribution<int>(0, tenant.priorities - 1)(random_);
  request.arrived = now_;
  FairQueue::Job job;
  job.tenant = absl::StrCat("tenant", index);
  job.weight = tenant.weight;
  job.priority = request.priority;
  if (request.seconds >= split_seconds_) request.parts = static_cast<int>(devices_.size());
  job.estimate = FromSeconds(request.seconds / request.parts);
  job.group = parts_.size() + 1;
  for (int i = 0; i < request.parts; ++i) {
    queue_.Enqueue(parts_.size(), job, Time());
    parts_.push_back({requests_.size(), request.seconds / request.parts, request.bytes / request.parts});
  }
  requests_.push_back(request);
}

std::string Simulation::Advance(double until) {
  std::string wrong;
  for (size_t device = 0; device < devices_.size() && wrong.empty(); ++device) wrong = Schedule(device);
  if (wrong.empty()) wrong = CheckInvariants();

  double next = until;
  for (const Device& device : devices_) {
    if (device.running.has_value()) next = std::min(next, device.running->end);
    if (device.copying.has_value()) next = std::min(next, device.copying->end);
  }
  for (double arrival : next_arrival_) next = std::min(next, arrival);
  if (wrong.empty()) now_ = next;

  for (size_t i = 0; i < devices_.size(); ++i) {
    if (wrong.empty() && devices_[i].running.has_value() && devices_[i].running->end <= now_) wrong = FinishSlice(i);
    if (wrong.empty() && devices_[i].copying.has_value() && devices_[i].copying->end <= now_) FinishCopy(devices_[i]);
  }
  if (!wrong.empty()) return absl::StrCat("at ", now_, " s: ", wrong);
  for (size_t tenant = 0; tenant < tenants_.size(); ++tenant) {
    if (next_arrival_[tenant] > now_) continue;
    Arrive(tenant);
    std::exponential_distribution<double> gap(tenants_[tenant].requests_per_second);
    next_arrival_[tenant] = now_ + gap(random_);
  }
  return "";
}

std::string Simulation::FinishSlice(size_t index) {
  Device& device = devices_[index];
  const Running slice = *std::exchange(device.running, std::nullopt);
  Part& part = parts_[slice.ticket];
  Request& request = requests_[part.request];
  const double seconds = slice.end - slice.begin;
  services_.push_back({request.tenant, index, slice.begin, slice.end});
  part.done_seconds += seconds;
  request.done_seconds += seconds;
  queue_.End(slice.ticket, FromSeconds(seconds), Time());
  if (part.done_seconds <= part.seconds - 1e-7) return "";
  queue_.Remove(slice.ticket);
  device.placed.erase(slice.ticket);
  ++finished_parts_;
  if (++request.done_parts < request.parts) return "";
  if (request.ended >= 0 || request.done_parts > request.parts) return "a request finished twice";
  request.ended = now_;
  ++finished_;
  if (arrivals_ && tenants_[request.tenant].in_flight > 0) Arrive(request.tenant);
  return "";
}

void Simulation::FinishCopy(Device& device) {
  const Copying copy = *std::exchange(device.copying, std::nullopt);
  Part& part = parts_[copy.ticket];
  part.copied += copy.bytes;
  if (part.copied < part.bytes) {
    device.to_copy.push_back(copy.ticket);
    return;
  }
  part.runnable = true;
  requests_[part.request].runnable = now_;
  queue_.MakeRunnable(copy.ticket);
}

bool Simulation::AnotherIsIdle(size_t index) const {
  return !devices_[index].placed.empty() &&
         std::any_of(devices_.begin(), devices_.end(), [](const Device& device) { return device.placed.empty(); });
}

void Simulation::Place(size_t index) {
  Device& device = devices_[index];
  bool progress = true;
  while (progress && !AnotherIsIdle(index)) {
    progress = false;
    auto of_memory = DeviceMemoryPool::Part::kAny;
    for (FairQueue::Ticket ticket : queue_.Candidates(static_cast<int>(index), Time())) {
      Request& request = requests_[parts_[ticket].request];
      std::optional<DeviceReservation> reservation = device.pool.TryReserve(parts_[ticket].bytes, of_memory);
      if (!reservation.has_value()) {
        if (now_ - request.arrived > 1) of_memory = DeviceMemoryPool::Part::kKeptForSmall;
        continue;
      }
      queue_.Place(ticket, static_cast<int>(index), Time());
      request.device = static_cast<int>(index);
      device.placed.emplace(ticket, *std::move(reservation));
      device.to_copy.push_back(ticket);
      progress = true;
      break;  // the order may be another one now
    }
  }
}

std::string Simulation::Schedule(size_t index) {
  Device& device = devices_[index];
  Place(index);
  if (!device.copying.has_value() && !device.to_copy.empty()) {
    const FairQueue::Ticket ticket = device.to_copy.front();
    device.to_copy.erase(device.to_copy.begin());
    const int64_t bytes = std::min(kCopyPiece, parts_[ticket].bytes - parts_[ticket].copied);
    device.copying = Copying{ticket, bytes, now_ + 20e-6 + static_cast<double>(bytes) / kCopyBytesPerSecond};
  }
  if (device.running.has_value()) return "";
  const std::optional<FairQueue::Ticket> ticket = queue_.Next(static_cast<int>(index), Time());
  if (!ticket.has_value()) {
    if (queue_.waiting() > 0 && device.placed.empty()) return "requests wait beside an idle and empty device";
    return "";
  }
  const Part& part = parts_[*ticket];
  Request& request = requests_[part.request];
  if (!part.runnable) return "a slice began before its inputs were there";
  if (request.began < 0) request.began = now_;
  // The estimate is off by up to a tenth; slices come in different lengths.
  const double left = part.seconds - part.done_seconds;
  const double seconds = std::min(left, kSlice * std::uniform_real_distribution<double>(0.6, 1.0)(random_));
  queue_.Begin(*ticket, FromSeconds(seconds * std::uniform_real_distribution<double>(0.9, 1.1)(random_)));
  device.running = Running{*ticket, now_, now_ + seconds};
  return "";
}

std::string Simulation::CheckInvariants() const {
  int64_t accounted = queue_.waiting() + finished_parts_;
  for (const Device& device : devices_) {
    int64_t reserved = 0;
    std::set<size_t> requests;
    for (const auto& [ticket, reservation] : device.placed) {
      reserved += reservation.bytes();
      if (!requests.insert(parts_[ticket].request).second) return "a device holds two parts of a request";
    }
    const DeviceMemoryPool::Use use = device.pool.GetUse();
    if (use.reserved_bytes != reserved) {
      return absl::StrCat(use.reserved_bytes, " bytes reserved, ", reserved, " held by requests");
    }
    if (reserved > use.limit_bytes) return absl::StrCat(reserved, " bytes reserved of ", use.limit_bytes);
    accounted += static_cast<int64_t>(device.placed.size());
  }
  if (accounted != static_cast<int64_t>(parts_.size())) {
    return absl::StrCat(accounted, " parts of requests accounted for of ", parts_.size());
  }
  return "";
}

}  // namespace flashbob::server
