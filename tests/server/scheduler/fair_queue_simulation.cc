#include "tests/server/scheduler/fair_queue_simulation.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"

namespace flashbob::server {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kCopyBytesPerSecond = 40e9;
constexpr int64_t kCopyPiece = 16 << 20;  // large inputs take turns with small ones

}  // namespace

Simulation::Simulation(uint64_t seed, std::vector<SimulatedTenant> tenants, int64_t memory_bytes)
    : random_(seed), tenants_(std::move(tenants)), pool_(memory_bytes), queue_(1, FairQueue::Options()) {
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
  if (pool_.GetUse().reserved_bytes != 0) return "memory leaked";
  return "";
}

double Simulation::Served(size_t tenant, double begin, double end) const {
  auto service = std::lower_bound(services_.begin(), services_.end(), begin,
                                  [](const Service& s, double time) { return s.end < time; });
  double served = 0;
  for (; service != services_.end() && service->begin < end; ++service) {
    if (service->tenant == tenant) served += std::min(service->end, end) - std::max(service->begin, begin);
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
  job.estimate = FromSeconds(request.seconds);
  queue_.Enqueue(requests_.size(), job, Time());
  requests_.push_back(request);
}

std::string Simulation::Advance(double until) {
  std::string wrong = Schedule();
  if (wrong.empty()) wrong = CheckInvariants();
  if (!wrong.empty()) return absl::StrCat("at ", now_, " s: ", wrong);

  double next = until;
  if (running_.has_value()) next = std::min(next, running_->end);
  if (copying_.has_value()) next = std::min(next, copying_->end);
  for (double arrival : next_arrival_) next = std::min(next, arrival);
  now_ = next;

  if (running_.has_value() && running_->end <= now_) {
    const Running slice = *running_;
    running_.reset();
    Request& request = requests_[slice.ticket];
    services_.push_back({request.tenant, slice.begin, slice.end});
    request.done_seconds += slice.end - slice.begin;
    queue_.End(slice.ticket, FromSeconds(slice.end - slice.begin), Time());
    if (request.done_seconds > request.seconds - 1e-7) {
      if (request.ended >= 0) return "a request finished twice";
      request.ended = now_;
      ++finished_;
      queue_.Remove(slice.ticket);
      placed_.erase(slice.ticket);
      if (arrivals_ && tenants_[request.tenant].in_flight > 0) Arrive(request.tenant);
    }
  }
  if (copying_.has_value() && copying_->end <= now_) {
    Request& request = requests_[copying_->ticket];
    request.copied += copying_->bytes;
    if (request.copied < request.bytes) {
      to_copy_.push_back(copying_->ticket);
    } else {
      request.runnable = now_;
      queue_.MakeRunnable(copying_->ticket);
    }
    copying_.reset();
  }
  for (size_t tenant = 0; tenant < tenants_.size(); ++tenant) {
    if (next_arrival_[tenant] > now_) continue;
    Arrive(tenant);
    std::exponential_distribution<double> gap(tenants_[tenant].requests_per_second);
    next_arrival_[tenant] = now_ + gap(random_);
  }
  return "";
}

std::string Simulation::Schedule() {
  bool progress = true;
  while (progress) {
    progress = false;
    auto part = DeviceMemoryPool::Part::kAny;
    for (FairQueue::Ticket ticket : queue_.Candidates(0, Time())) {
      const Request& request = requests_[ticket];
      std::optional<DeviceReservation> reservation = pool_.TryReserve(request.bytes, part);
      if (!reservation.has_value()) {
        if (now_ - request.arrived > 1) part = DeviceMemoryPool::Part::kKeptForSmall;
        continue;
      }
      queue_.Place(ticket, 0, Time());
      placed_.emplace(ticket, *std::move(reservation));
      to_copy_.push_back(ticket);
      progress = true;
      break;  // the order may be another one now
    }
  }
  if (!copying_.has_value() && !to_copy_.empty()) {
    const FairQueue::Ticket ticket = to_copy_.front();
    to_copy_.erase(to_copy_.begin());
    const int64_t bytes = std::min(kCopyPiece, requests_[ticket].bytes - requests_[ticket].copied);
    copying_ = Copying{ticket, bytes, now_ + 20e-6 + static_cast<double>(bytes) / kCopyBytesPerSecond};
  }
  if (running_.has_value()) return "";
  const std::optional<FairQueue::Ticket> ticket = queue_.Next(0, Time());
  if (!ticket.has_value()) {
    if (queue_.waiting() > 0 && placed_.empty()) return "requests wait beside an idle and empty device";
    return "";
  }
  Request& request = requests_[*ticket];
  if (request.runnable < 0) return "a slice began before its inputs were there";
  if (request.began < 0) request.began = now_;
  // The estimate is off by up to a tenth; slices come in different lengths.
  const double left = request.seconds - request.done_seconds;
  const double seconds = std::min(left, kSlice * std::uniform_real_distribution<double>(0.6, 1.0)(random_));
  queue_.Begin(*ticket, FromSeconds(seconds * std::uniform_real_distribution<double>(0.9, 1.1)(random_)));
  running_ = Running{*ticket, now_, now_ + seconds};
  return "";
}

std::string Simulation::CheckInvariants() const {
  int64_t reserved = 0;
  for (const auto& [ticket, reservation] : placed_) reserved += reservation.bytes();
  const DeviceMemoryPool::Use use = pool_.GetUse();
  if (use.reserved_bytes != reserved) {
    return absl::StrCat(use.reserved_bytes, " bytes reserved, ", reserved, " held by requests");
  }
  if (reserved > use.limit_bytes) return absl::StrCat(reserved, " bytes reserved of ", use.limit_bytes);
  const int64_t accounted = queue_.waiting() + static_cast<int64_t>(placed_.size()) + finished_;
  if (accounted != static_cast<int64_t>(requests_.size())) {
    return absl::StrCat(accounted, " requests accounted for of ", requests_.size());
  }
  return "";
}

}  // namespace flashbob::server
