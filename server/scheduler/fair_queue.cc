#include "server/scheduler/fair_queue.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace flashbob::server {
namespace {

// Virtual times are sums of many small ones: equal ones may differ by this, in seconds.
constexpr double kRounding = 1e-9;

// What a tenant is still owed, in quanta, that wanted to run but had nothing in device memory that could. More would
// let it push the others aside for as long as it had waited for memory or copies.
constexpr double kCredit = 2;

// A request that ends within so many quanta ends before a long newcomer of its tenant begins.
constexpr double kNearlyDone = 2;

}  // namespace

FairQueue::FairQueue(int num_devices, Options options)
    : options_(options),
      quantum_(ToSeconds(options.quantum)),
      device_virtual_time_(static_cast<size_t>(num_devices), 0.0) {}

void FairQueue::Enqueue(Ticket ticket, const Job& job, TimePoint now) {
  Tenant& tenant = tenants_[job.tenant];
  tenant.lanes.resize(device_virtual_time_.size());
  tenant.weight = job.weight;
  tenant.waiting.push_back(ticket);
  Entry entry;
  entry.tenant = &tenant;
  entry.job = job;
  entry.served = now;
  entries_.emplace(ticket, std::move(entry));
  ++waiting_;
}

std::vector<FairQueue::Ticket> FairQueue::Candidates(int device, TimePoint now) const {
  struct Candidate {
    double virtual_start;
    Ticket ticket;
  };
  std::vector<Candidate> found;
  for (const auto& [name, tenant] : tenants_) {
    const Ticket* best = BestWaiting(tenant, device, now, false);
    const Ticket* best_short = BestWaiting(tenant, device, now, true);
    for (const Ticket* ticket : {best, best_short == best ? nullptr : best_short}) {
      if (ticket == nullptr) continue;
      const std::optional<Turn> turn = PlanTurn(tenant, Get(*ticket), device, now);
      if (turn.has_value()) found.push_back({turn->virtual_start, *ticket});
    }
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const Candidate& a, const Candidate& b) { return a.virtual_start < b.virtual_start; });
  std::vector<Ticket> tickets;
  for (const Candidate& candidate : found) tickets.push_back(candidate.ticket);
  return tickets;
}

void FairQueue::Place(Ticket ticket, int device, TimePoint now) {
  Entry& entry = Get(ticket);
  Tenant& tenant = *entry.tenant;
  Lane& lane = tenant.lanes[static_cast<size_t>(device)];
  if (lane.placed.empty()) {
    lane.virtual_time = VirtualTime(tenant, device);
    lane.was_idle = false;
    lane.newcomers = 0;
  }
  entry.turn = PlanTurn(tenant, entry, device, now).value_or(Turn{lane.virtual_time, false});
  entry.device = device;
  entry.state = State::kStaging;
  lane.placed.push_back(ticket);
  std::erase(tenant.waiting, ticket);
  --waiting_;
}

void FairQueue::MakeRunnable(Ticket ticket) { Get(ticket).state = State::kRunnable; }

std::optional<FairQueue::Ticket> FairQueue::Next(int device, TimePoint now) const {
  std::optional<Ticket> next;
  double least = 0;
  bool least_started = false;
  bool least_waits = false;
  for (const auto& [name, tenant] : tenants_) {
    const Lane& lane = tenant.lanes[static_cast<size_t>(device)];
    const std::optional<Ticket> ticket = NextOf(lane, now);
    if (!ticket.has_value()) continue;
    const bool started = Get(*ticket).started;
    const bool waits = started && OvertakesNewcomer(tenant, Get(*ticket));
    const double ahead = lane.virtual_time - least;
    const bool ties = std::abs(ahead) <= kRounding;
    if (!next.has_value() || waits < least_waits ||
        (waits == least_waits && (ties ? started < least_started : ahead < 0))) {
      next = ticket;
      least = lane.virtual_time;
      least_started = started;
      least_waits = waits;
    }
  }
  return next;
}

void FairQueue::Begin(Ticket ticket, Duration estimate) {
  Entry& entry = Get(ticket);
  Lane& lane = entry.tenant->lanes[static_cast<size_t>(entry.device)];
  const double seconds = ToSeconds(estimate);
  // Those that it passes by, since they have nothing ready, may catch up later, but not for long.
  for (auto& [name, other] : tenants_) {
    Lane& passed = other.lanes[static_cast<size_t>(entry.device)];
    if (passed.placed.empty()) continue;
    const double slower = std::min(entry.tenant->weight, other.weight);
    passed.virtual_time = std::max(passed.virtual_time, lane.virtual_time - kCredit * quantum_ / slower);
  }
  if (entry.started) {
    lane.newcomers = 0;
    for (Ticket placed : lane.placed) Get(placed).turn.after_started = false;
  } else {
    lane.newcomers += seconds;
  }
  lane.in_service = seconds;
  lane.virtual_time += seconds / entry.tenant->weight;
  entry.started = true;
  entry.state = State::kRunning;
  AdvanceDevice(entry.device);
}

void FairQueue::End(Ticket ticket, Duration took, TimePoint now) {
  Entry& entry = Get(ticket);
  Lane& lane = entry.tenant->lanes[static_cast<size_t>(entry.device)];
  lane.virtual_time += (ToSeconds(took) - lane.in_service) / entry.tenant->weight;
  lane.in_service = 0;
  entry.done += ToSeconds(took);
  entry.state = State::kRunnable;
  entry.served = now;
  AdvanceDevice(entry.device);
}

void FairQueue::Remove(Ticket ticket) {
  Entry& entry = Get(ticket);
  Tenant& tenant = *entry.tenant;
  if (entry.state == State::kWaiting) {
    std::erase(tenant.waiting, ticket);
    --waiting_;
  } else {
    std::erase(tenant.lanes[static_cast<size_t>(entry.device)].placed, ticket);
  }
  entries_.erase(ticket);
  if (!tenant.waiting.empty()) return;
  for (Lane& lane : tenant.lanes) lane.was_idle = lane.was_idle || lane.placed.empty();
}

int64_t FairQueue::Level(const Entry& entry, TimePoint now) const {
  return entry.job.priority + (now - entry.served) / options_.ageing;
}

double FairQueue::NextSlice(const Entry& entry) const {
  return std::clamp(ToSeconds(entry.job.estimate) - entry.done, 0.0, quantum_);
}

double FairQueue::Staged(const Lane& lane) const {
  double staged = 0;
  for (Ticket ticket : lane.placed) {
    const Entry& entry = Get(ticket);
    if (!entry.started) staged += NextSlice(entry);
  }
  return staged;
}

bool FairQueue::HoldsSibling(const Lane& lane, const Entry& entry) const {
  if (entry.job.group == 0) return false;
  return std::any_of(lane.placed.begin(), lane.placed.end(),
                     [&](Ticket placed) { return Get(placed).job.group == entry.job.group; });
}

const FairQueue::Ticket* FairQueue::BestWaiting(const Tenant& tenant, int device, TimePoint now,
                                                bool only_short) const {
  const Ticket* best = nullptr;
  int64_t best_level = std::numeric_limits<int64_t>::min();
  for (const Ticket& ticket : tenant.waiting) {  // oldest first
    const Entry& entry = Get(ticket);
    if (only_short && entry.job.estimate > options_.quantum) continue;
    if (HoldsSibling(tenant.lanes[static_cast<size_t>(device)], entry)) continue;
    const int64_t level = Level(entry, now);
    if (level > best_level) {
      best = &ticket;
      best_level = level;
    }
  }
  return best;
}

std::optional<FairQueue::Turn> FairQueue::PlanTurn(const Tenant& tenant, const Entry& entry, int device,
                                                   TimePoint now) const {
  const Lane& lane = tenant.lanes[static_cast<size_t>(device)];
  const int64_t level = Level(entry, now);
  const bool is_long = entry.job.estimate > options_.quantum;
  int long_requests = 0;
  double longest = 0;   // next slice of those that have started and take turns with it
  double any = 0;       // the same of all that have started
  bool behind = false;  // a newcomer before it lets one of those go first
  for (Ticket ticket : lane.placed) {
    const Entry& other = Get(ticket);
    if (other.job.estimate > options_.quantum && ++long_requests >= options_.max_long_requests && is_long) return {};
    behind = behind || (!other.started && other.turn.after_started);
    if (!other.started) continue;
    any = std::max(any, NextSlice(other));
    const int64_t other_level = Level(other, now);
    if (other_level > level && NextSlice(other) >= quantum_) return {};
    if (other_level >= level) longest = std::max(longest, NextSlice(other));
  }

  // Its own tenant: a quantum at most is before it. Round robin: a quantum of newcomers, then one that has started.
  Turn turn;
  double before = Staged(lane);
  if (longest > 0 && lane.newcomers + before > quantum_ - kRounding) {
    turn.after_started = true;
    before += longest;
  } else if (behind) {
    before += any;
  }
  if (before > quantum_ + kRounding) return {};

  // The other tenants on this device.
  turn.virtual_start = VirtualTime(tenant, device) + before / tenant.weight;
  if (!WithinReach(tenant, device, turn.virtual_start)) return {};
  return turn;
}

std::optional<FairQueue::Ticket> FairQueue::NextOf(const Lane& lane, TimePoint now) const {
  std::optional<Ticket> newcomer;  // the first to be placed
  std::optional<Ticket> started;
  for (Ticket ticket : lane.placed) {
    const Entry& entry = Get(ticket);
    if (entry.state != State::kRunnable) continue;
    if (!entry.started) {
      if (!newcomer.has_value()) newcomer = ticket;
      continue;
    }
    if (started.has_value()) {
      const Entry& other = Get(*started);
      const int64_t level = Level(entry, now);
      const int64_t other_level = Level(other, now);
      if (level < other_level || (level == other_level && entry.served >= other.served)) continue;
    }
    started = ticket;
  }
  const bool started_has_turn =
      started.has_value() && newcomer.has_value() &&
      (Get(*newcomer).turn.after_started || EndsFirst(lane, Get(*started), Get(*newcomer), now));
  return newcomer.has_value() && !started_has_turn ? newcomer : started;
}

bool FairQueue::EndsFirst(const Lane& lane, const Entry& started, const Entry& newcomer, TimePoint now) const {
  if (ToSeconds(started.job.estimate) - started.done > kNearlyDone * quantum_ ||
      Level(started, now) < Level(newcomer, now)) {
    return false;
  }
  return std::none_of(lane.placed.begin(), lane.placed.end(), [&](Ticket placed) {
    const Entry& entry = Get(placed);
    return !entry.started && entry.job.estimate <= options_.quantum;
  });
}

double FairQueue::VirtualTime(const Tenant& tenant, int device) const {
  const Lane& lane = tenant.lanes[static_cast<size_t>(device)];
  if (!lane.placed.empty()) return lane.virtual_time;
  double least = device_virtual_time_[static_cast<size_t>(device)];
  if (!lane.was_idle) least -= kCredit * quantum_ / tenant.weight;
  for (const auto& [name, other] : tenants_) {
    for (Ticket placed : other.lanes[static_cast<size_t>(device)].placed) {
      const Entry& newcomer = Get(placed);
      if (!newcomer.started) least = std::max(least, newcomer.turn.virtual_start - quantum_ / tenant.weight);
    }
  }
  return std::max(lane.virtual_time, least);
}

bool FairQueue::OvertakesNewcomer(const Tenant& tenant, const Entry& started) const {
  const Lane& lane = tenant.lanes[static_cast<size_t>(started.device)];
  double before = NextSlice(started);
  for (Ticket ticket : lane.placed) {
    const Entry& entry = Get(ticket);
    if (entry.started) continue;
    const bool hurt =
        entry.state == State::kStaging && entry.job.estimate <= options_.quantum && !entry.turn.after_started;
    if (hurt && !WithinReach(tenant, started.device, lane.virtual_time + before / tenant.weight)) return true;
    before += NextSlice(entry);
  }
  return false;
}

bool FairQueue::WithinReach(const Tenant& tenant, int device, double virtual_start) const {
  return std::all_of(tenants_.begin(), tenants_.end(), [&](const auto& entry) {
    const Tenant& other = entry.second;
    const Lane& lane = other.lanes[static_cast<size_t>(device)];
    if (&other == &tenant || lane.placed.empty()) return true;
    const double done = lane.virtual_time - lane.in_service / other.weight;
    return virtual_start <= done + quantum_ / other.weight + kRounding;
  });
}

void FairQueue::AdvanceDevice(int device) {
  double least = std::numeric_limits<double>::infinity();
  for (const auto& [name, tenant] : tenants_) {
    const Lane& lane = tenant.lanes[static_cast<size_t>(device)];
    if (!lane.placed.empty()) least = std::min(least, lane.virtual_time - lane.in_service / tenant.weight);
  }
  double& now = device_virtual_time_[static_cast<size_t>(device)];
  if (least < std::numeric_limits<double>::infinity()) now = std::max(now, least);
}

}  // namespace flashbob::server
