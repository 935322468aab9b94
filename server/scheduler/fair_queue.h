// FairQueue: which request gets device memory next, and whose slice a device runs next. Policy alone: no threads, no
// memory, no clock of its own.
//
//   Enqueue --> waiting --Place--> staging --MakeRunnable--> runnable --Begin--> running --End--> runnable ... Remove
//
// Between tenants: weighted fair queueing in seconds of device time. On each device a tenant has a virtual time, which
// advances by (seconds of its slices) / weight; the tenant that lags most runs next. One that comes back from idleness
// starts at the device's virtual time: it neither owes nor is owed.
//
// Inside a tenant: requests get device memory by priority, then age; `ageing` of waiting counts as one priority more,
// so that nothing starves. Those that hold device memory share the tenant's turns round robin, a newcomer first; but
// one that ends within two quanta ends before a long newcomer begins. Two that took turns to their last slices would
// end together, be followed by two that are copied in together, and the device would be idle meanwhile.
//
// A request is placed only when it is about to run: when every tenant on the device reaches the newcomer's virtual
// start within one quantum of its own device time. From then on it waits for at most two slices of each of them (the
// one that crosses the line, and at most one before it), whatever the weights. To hold the promise a tenant that
// arrives later starts no more than a quantum before the newcomers that wait already.
//
// Thread safety: none; the owner locks.
#ifndef FLASHBOB_SERVER_SCHEDULER_FAIR_QUEUE_H_
#define FLASHBOB_SERVER_SCHEDULER_FAIR_QUEUE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "server/base/clock.h"

namespace flashbob::server {

class FairQueue {
 public:
  struct Options {
    Duration quantum = std::chrono::milliseconds(20);  // what a slice should take; one may take an eighth more
    Duration ageing = std::chrono::seconds(1);         // > 0
    // Requests of one tenant longer than a quantum that may be under way on one device: each holds its memory.
    int max_long_requests = 4;
  };

  // Names a request; chosen by the owner, never used twice.
  using Ticket = uint64_t;

  struct Job {
    std::string tenant;
    double weight = 1;       // of the tenant, > 0; the latest one counts
    int priority = 0;        // inside the tenant, higher first
    Duration estimate = {};  // of its device time
    uint64_t group = 0;      // of those of one group, above 0, a device holds one at a time
  };

  FairQueue(int num_devices, Options options);

  void Enqueue(Ticket ticket, const Job& job, TimePoint now);

  // The waiting requests that may be placed on a device now, in the order in which they should get memory: of each
  // tenant the first and the first short one. Placing one changes what may follow: ask again.
  std::vector<Ticket> Candidates(int device, TimePoint now) const;
  // A waiting request got memory on a device.
  void Place(Ticket ticket, int device, TimePoint now);
  // Its inputs are there.
  void MakeRunnable(Ticket ticket);

  // The request whose slice a device should run now.
  std::optional<Ticket> Next(int device, TimePoint now) const;
  // Its slice begins; it is charged with the estimate, until the end says what it took.
  void Begin(Ticket ticket, Duration estimate);
  void End(Ticket ticket, Duration took, TimePoint now);

  // A request is done or withdrawn, in whatever state but running.
  void Remove(Ticket ticket);

  int64_t waiting() const { return waiting_; }

 private:
  enum class State : uint8_t { kWaiting, kStaging, kRunnable, kRunning };

  struct Tenant;
  // When a newcomer's first slice is to run.
  struct Turn {
    double virtual_start = 0;    // its tenant's virtual time then
    bool after_started = false;  // one slice of a request of its tenant that has started comes first
  };
  struct Entry {
    Tenant* tenant;
    Job job;
    State state = State::kWaiting;
    int device = -1;       // from kStaging on
    bool started = false;  // its first slice began
    Turn turn;             // from kStaging until it started
    double done = 0;       // seconds of its slices that ended
    TimePoint served;      // when it came, or its last slice ended
  };

  // A tenant on one device. Times in seconds.
  struct Lane {
    double virtual_time = 0;     // of all slices that began
    double in_service = 0;       // estimate of its slice that runs now
    double newcomers = 0;        // first slices since the last slice that was none
    bool was_idle = true;        // had nothing to do at some time since it was last on this device
    std::vector<Ticket> placed;  // staging, runnable, running; in the order of placing
  };
  struct Tenant {
    double weight = 1;
    std::vector<Ticket> waiting;
    std::vector<Lane> lanes;  // by device
  };

  Entry& Get(Ticket ticket) { return entries_.at(ticket); }
  const Entry& Get(Ticket ticket) const { return entries_.at(ticket); }
  int64_t Level(const Entry& entry, TimePoint now) const;
  double NextSlice(const Entry& entry) const;  // its estimate, in seconds
  // First slices of all its placed requests that have not started.
  double Staged(const Lane& lane) const;
  // Whether a device holds another of its group.
  bool HoldsSibling(const Lane& lane, const Entry& entry) const;
  const Ticket* BestWaiting(const Tenant& tenant, int device, TimePoint now, bool only_short) const;
  // A tenant's virtual time on a device, where it is not there: the one that it would arrive with.
  double VirtualTime(const Tenant& tenant, int device) const;
  // The turn that a waiting request would have; nothing where it has to wait for longer.
  std::optional<Turn> PlanTurn(const Tenant& tenant, const Entry& entry, int device, TimePoint now) const;
  std::optional<Ticket> NextOf(const Lane& lane, TimePoint now) const;
  // Whether a request is nearly done and ends before a newcomer begins: where no short one is on its way.
  bool EndsFirst(const Lane& lane, const Entry& started, const Entry& newcomer, TimePoint now) const;
  // Whether one more slice of a request that has started would make a short newcomer of its own tenant, which is on its
  // way into the device, wait for longer than promised.
  bool OvertakesNewcomer(const Tenant& tenant, const Entry& started) const;
  // Whether every other tenant on the device reaches a virtual time within one quantum of its device time.
  bool WithinReach(const Tenant& tenant, int device, double virtual_start) const;
  // The least virtual time of a tenant on the device, not counting the slice that runs; never goes back.
  void AdvanceDevice(int device);

  const Options options_;
  const double quantum_;  // seconds
  std::unordered_map<Ticket, Entry> entries_;
  std::map<std::string, Tenant> tenants_;
  std::vector<double> device_virtual_time_;
  int64_t waiting_ = 0;
};

}  // namespace flashbob::server

#endif  // FLASHBOB_SERVER_SCHEDULER_FAIR_QUEUE_H_
