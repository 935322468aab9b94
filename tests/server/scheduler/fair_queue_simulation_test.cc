// The story of a shared device, told over thousands of random schedules: five tenants of weights 1 to 8 send requests
// of 1 ms to 30 s. Time and device are stepped; a schedule of a minute takes milliseconds.
#include "tests/server/scheduler/fair_queue_simulation.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace flashbob::server {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;
constexpr int kTenants = 5;

uint64_t BaseSeed() {
  const char* given = std::getenv("FLASHBOB_TEST_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : 20240607;
}

double DrawWeight(std::mt19937_64& random) { return std::uniform_int_distribution<int>(1, 8)(random); }

double DrawSeconds(std::mt19937_64& random, double least, double most) {
  return std::exp(std::uniform_real_distribution<double>(std::log(least), std::log(most))(random));
}

// Always has requests waiting; how long they are differs from tenant to tenant.
SimulatedTenant Flooding(std::mt19937_64& random) {
  SimulatedTenant tenant;
  tenant.weight = DrawWeight(random);
  tenant.in_flight = std::uniform_int_distribution<int>(6, 16)(random);
  const bool also_shortest = std::bernoulli_distribution(0.5)(random);
  if (!also_shortest) tenant.min_seconds = DrawSeconds(random, tenant.min_seconds, 1);
  tenant.max_seconds = DrawSeconds(random, tenant.min_seconds, tenant.max_seconds);
  tenant.priorities = std::uniform_int_distribution<int>(1, 3)(random);
  return tenant;
}

// Asks for a few requests of 1 ms now and then.
SimulatedTenant Light(std::mt19937_64& random) {
  SimulatedTenant tenant;
  tenant.weight = DrawWeight(random);
  tenant.requests_per_second = std::uniform_real_distribution<double>(0.5, 15)(random);
  tenant.max_seconds = tenant.min_seconds;
  return tenant;
}

// Sends anything at random, together about as much as the device can do.
SimulatedTenant Mixed(std::mt19937_64& random) {
  SimulatedTenant tenant;
  tenant.weight = DrawWeight(random);
  tenant.requests_per_second = std::uniform_real_distribution<double>(0.02, 0.2)(random);
  tenant.priorities = 3;
  return tenant;
}

// A request of 1 ms that holds device memory waits for at most two slices of each tenant.
void ExpectShortWaits(const Simulation& simulation) {
  for (const Simulation::Request& request : simulation.requests()) {
    if (request.seconds > 0.0011 || request.began < 0) continue;
    for (size_t tenant = 0; tenant < kTenants; ++tenant) {
      const double waited_for = simulation.Served(tenant, request.runnable, request.began, request.device);
      ASSERT_LE(waited_for, 2 * Simulation::kSlice + 1e-6) << "tenant " << tenant << " before a request of tenant "
                                                           << request.tenant << " that arrived at " << request.arrived;
    }
  }
}

TEST(FairQueueSimulation, BackloggedTenantsGetTheirShareAndShortRequestsTheirTurn) {
  constexpr int kSchedules = 500;
  constexpr double kWindow = 10;
  constexpr double kSeconds = 30;
  for (int schedule = 0; schedule < kSchedules; ++schedule) {
    const uint64_t seed = BaseSeed() + static_cast<uint64_t>(schedule);
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const int flooding = std::uniform_int_distribution<int>(2, kTenants)(random);
    std::vector<SimulatedTenant> tenants;
    for (int i = 0; i < kTenants; ++i) tenants.push_back(i < flooding ? Flooding(random) : Light(random));
    // Room for all that the tenants may have under way at once: here time is what is short.
    Simulation simulation(seed, tenants, {.memory_bytes = 140 * kGiB});
    ASSERT_EQ(simulation.Run(kSeconds), "");
    ExpectShortWaits(simulation);

    double weights = 0;
    for (int i = 0; i < flooding; ++i) weights += tenants[static_cast<size_t>(i)].weight;
    for (double begin = 0.5; begin + kWindow < kSeconds; begin += 0.37) {
      double left = kWindow;  // for those that always want more
      for (size_t i = static_cast<size_t>(flooding); i < kTenants; ++i) {
        left -= simulation.Served(i, begin, begin + kWindow);
      }
      for (size_t i = 0; i < static_cast<size_t>(flooding); ++i) {
        const double due = left * tenants[i].weight / weights;
        ASSERT_NEAR(simulation.Served(i, begin, begin + kWindow), due, std::max(0.05 * due, Simulation::kSlice))
            << "tenant " << i << " of weight " << tenants[i].weight << " of " << weights << " from " << begin << " s";
      }
    }
  }
}

TEST(FairQueueSimulation, EverythingIsDoneWhereMemoryIsShort) {
  constexpr int kSchedules = 400;
  for (int schedule = 0; schedule < kSchedules; ++schedule) {
    const uint64_t seed = BaseSeed() + 1'000'000 + static_cast<uint64_t>(schedule);
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    std::vector<SimulatedTenant> tenants;
    for (int i = 0; i < kTenants; ++i) {
      const int kind = std::uniform_int_distribution<int>(0, 3)(random);
      tenants.push_back(kind == 0 ? Flooding(random) : kind == 1 ? Light(random) : Mixed(random));
    }
    // Between one and a few of the largest requests fit.
    const int64_t memory = std::uniform_int_distribution<int64_t>(2, 5)(random) * kGiB;
    Simulation simulation(seed, tenants, {.memory_bytes = memory});
    ASSERT_EQ(simulation.Run(20), "");
    ASSERT_EQ(simulation.Drain(), "");
    ExpectShortWaits(simulation);
    for (const Simulation::Request& request : simulation.requests()) ASSERT_GE(request.ended, 0);
  }
}

TEST(FairQueueSimulation, LightTenantsHardlyNoticeAFlood) {
  constexpr int kSchedules = 100;
  for (int schedule = 0; schedule < kSchedules; ++schedule) {
    const uint64_t seed = BaseSeed() + 2'000'000 + static_cast<uint64_t>(schedule);
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    std::vector<SimulatedTenant> tenants;
    for (int i = 0; i < kTenants - 1; ++i) tenants.push_back(Flooding(random));
    tenants.push_back(Light(random));
    tenants.back().requests_per_second = 2;
    Simulation simulation(seed, tenants, {.memory_bytes = 140 * kGiB});
    ASSERT_EQ(simulation.Run(20), "");
    for (const Simulation::Request& request : simulation.requests()) {
      if (request.tenant != kTenants - 1 || request.arrived > 19) continue;
      ASSERT_GE(request.ended, 0);
      // From arrival to result: two slices of each, and its share of the copy engine.
      ASSERT_LE(request.ended - request.arrived, 2 * kTenants * Simulation::kSlice + 0.1) << request.arrived;
    }
  }
}

TEST(FairQueueSimulation, SharesAndTurnsAreKeptWhereLongRequestsAreSplitOverDevices) {
  constexpr int kSchedules = 25;
  constexpr double kWindow = 10;
  for (int schedule = 0; schedule < kSchedules; ++schedule) {
    const uint64_t seed = BaseSeed() + 3'000'000 + static_cast<uint64_t>(schedule);
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const int devices = std::uniform_int_distribution<int>(2, 4)(random);
    const int flooding = std::uniform_int_distribution<int>(2, kTenants)(random);
    std::vector<SimulatedTenant> tenants;
    for (int i = 0; i < kTenants; ++i) {
      tenants.push_back(i < flooding ? Flooding(random) : Light(random));
      // Some always wait, whatever devices hold: up to a quantum's worth of short ones each.
      if (i < flooding) tenants.back().in_flight = devices * (tenants.back().in_flight + 20);
    }
    Simulation simulation(seed, tenants, {.count = devices, .memory_bytes = 140 * kGiB, .split_seconds = 0.05});
    ASSERT_EQ(simulation.Run(15), "");
    ExpectShortWaits(simulation);

    double weights = 0;
    for (int i = 0; i < flooding; ++i) weights += tenants[static_cast<size_t>(i)].weight;
    for (int device = 0; device < devices; ++device) {
      for (double begin = 1; begin + kWindow < 15; begin += 0.73) {
        double left = kWindow;  // for those that always want more
        for (size_t i = static_cast<size_t>(flooding); i < kTenants; ++i) {
          left -= simulation.Served(i, begin, begin + kWindow, device);
        }
        for (size_t i = 0; i < static_cast<size_t>(flooding); ++i) {
          const double due = left * tenants[i].weight / weights;
          ASSERT_NEAR(simulation.Served(i, begin, begin + kWindow, device), due,
                      std::max(0.05 * due, Simulation::kSlice))
              << "tenant " << i << " of weight " << tenants[i].weight << " of " << weights << " from " << begin
              << " s on device " << device << " of " << devices;
        }
      }
    }
  }
}

TEST(FairQueueSimulation, EverythingIsDoneWhereMemoryIsShortAndRequestsAreSplit) {
  constexpr int kSchedules = 100;
  for (int schedule = 0; schedule < kSchedules; ++schedule) {
    const uint64_t seed = BaseSeed() + 4'000'000 + static_cast<uint64_t>(schedule);
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    std::vector<SimulatedTenant> tenants;
    for (int i = 0; i < kTenants; ++i) {
      const int kind = std::uniform_int_distribution<int>(0, 3)(random);
      tenants.push_back(kind == 0 ? Flooding(random) : kind == 1 ? Light(random) : Mixed(random));
    }
    const int64_t memory = std::uniform_int_distribution<int64_t>(2, 5)(random) * kGiB;
    const int devices = std::uniform_int_distribution<int>(2, 4)(random);
    Simulation simulation(seed, tenants, {.count = devices, .memory_bytes = memory, .split_seconds = 0.05});
    ASSERT_EQ(simulation.Run(10), "");
    ASSERT_EQ(simulation.Drain(), "");
    ExpectShortWaits(simulation);
    for (const Simulation::Request& request : simulation.requests()) ASSERT_GE(request.ended, 0);
  }
}

TEST(FairQueueSimulation, LoneSplitRequestTakesItsShareOfEachDevice) {
  for (int devices : {1, 2, 4, 8}) {
    SimulatedTenant tenant;
    tenant.in_flight = 1;
    tenant.min_seconds = tenant.max_seconds = 8;
    Simulation simulation(BaseSeed(), {tenant}, {.count = devices, .memory_bytes = 140 * kGiB, .split_seconds = 0.05});
    ASSERT_EQ(simulation.Run(9), "");
    EXPECT_NEAR(simulation.requests()[0].ended, 8.0 / devices, 0.05) << devices;
  }
}

}  // namespace
}  // namespace flashbob::server
