// Simulated devices that FairQueue and DeviceMemoryPool run: a compute engine and a copy engine each, and the time, are
// stepped from event to event, nothing is real. Every step checks what must hold always; what happened is kept for
// questions. Long requests may be split into parts, one for each device.
#ifndef FLASHBOB_TESTS_SERVER_SCHEDULER_FAIR_QUEUE_SIMULATION_H_
#define FLASHBOB_TESTS_SERVER_SCHEDULER_FAIR_QUEUE_SIMULATION_H_

#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "server/memory/device_memory_pool.h"
#include "server/scheduler/fair_queue.h"

namespace flashbob::server {

// What a tenant of a simulation does.
struct SimulatedTenant {
  double weight = 1;
  // Keeps so many requests in flight all the time; 0: requests come at random, `requests_per_second` on average.
  int in_flight = 0;
  double requests_per_second = 0;
  double min_seconds = 0.001;  // device time of a request, drawn evenly on a logarithmic scale
  double max_seconds = 30;
  int priorities = 1;  // drawn from 0 .. priorities - 1
};

class Simulation {
 public:
  static constexpr double kSlice = 0.0225;  // the longest: some of a GPU's take an eighth more than a quantum

  struct Devices {
    int count = 1;
    int64_t memory_bytes = 0;                                        // of each
    double split_seconds = std::numeric_limits<double>::infinity();  // from where on a request is split
  };
  Simulation(uint64_t seed, std::vector<SimulatedTenant> tenants, const Devices& devices);

  // Lets `seconds` pass. An error names the first thing that was wrong.
  std::string Run(double seconds);
  // No more arrivals: runs until all is done.
  std::string Drain();

  struct Request {
    size_t tenant = 0;
    double seconds = 0;
    int64_t bytes = 0;
    int priority = 0;
    double arrived = 0;
    int parts = 1;
    int device = -1;       // that its last part was placed on
    double runnable = -1;  // when the inputs of the last part were in device memory
    double began = -1;
    double ended = -1;
    double done_seconds = 0;
    int done_parts = 0;
  };
  // A slice that ran.
  struct Service {
    size_t tenant;
    size_t device;
    double begin;
    double end;
  };

  double now() const { return now_; }
  const std::vector<Request>& requests() const { return requests_; }
  const std::vector<Service>& services() const { return services_; }
  // Time that a tenant had in a window, of one device or of all.
  double Served(size_t tenant, double begin, double end, std::optional<int> device = std::nullopt) const;

 private:
  // By ticket. A request has one or, where it is split, one for each device.
  struct Part {
    size_t request = 0;
    double seconds = 0;
    int64_t bytes = 0;
    int64_t copied = 0;
    double done_seconds = 0;
    bool runnable = false;
  };
  struct Running {
    FairQueue::Ticket ticket;
    double begin;
    double end;
  };
  struct Copying {
    FairQueue::Ticket ticket;
    int64_t bytes;
    double end;
  };

  struct Device {
    explicit Device(int64_t memory_bytes) : pool(memory_bytes) {}
    DeviceMemoryPool pool;
    std::map<FairQueue::Ticket, DeviceReservation> placed;
    std::vector<FairQueue::Ticket> to_copy;
    std::optional<Copying> copying;
    std::optional<Running> running;
  };

  void Arrive(size_t tenant);
  std::string Advance(double until);  // to the next event, no further than `until`
  std::string FinishSlice(size_t device);
  void FinishCopy(Device& device);
  std::string Schedule(size_t device);
  void Place(size_t device);
  bool AnotherIsIdle(size_t device) const;
  std::string CheckInvariants() const;
  TimePoint Time() const { return TimePoint(FromSeconds(now_)); }

  std::mt19937_64 random_;
  const std::vector<SimulatedTenant> tenants_;
  const double split_seconds_;
  FairQueue queue_;
  bool arrivals_ = true;
  double now_ = 0;
  std::vector<double> next_arrival_;
  std::vector<Request> requests_;
  std::vector<Part> parts_;
  std::deque<Device> devices_;
  int64_t finished_ = 0;  // requests
  int64_t finished_parts_ = 0;
  std::vector<Service> services_;
};

}  // namespace flashbob::server

#endif  // FLASHBOB_TESTS_SERVER_SCHEDULER_FAIR_QUEUE_SIMULATION_H_
