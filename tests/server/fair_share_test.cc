// Tenants on one device, live: the real server on the CPU engine. Times are compared with others of the same run only;
// the rest of the machine may still disturb one, so that each promise has three tries.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <numeric>
#include <set>
#include <thread>
#include <vector>

#include "kernels/cpu/cpu_engine.h"
#include "tests/server/testing/metered_engine.h"
#include "tests/server/testing/test_server.h"

namespace flashbob::server {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kTries = 3;

// SHA-256 of "alpha-token" and "beta-token".
constexpr char kAlphaHash[] = "a336d9b1d8b8647875238537ca5087b0ea335afd2032936aecdffc3e4b13f720";
constexpr char kBetaHash[] = "863d63c0bd3a94bfca84ed2063a7355a226faff82ca50b90158bf183aa1a9e61";

double Seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

// How long the figures are gathered; FLASHBOB_LIVE_SECONDS for a longer form by hand.
double LiveSeconds() {
  const char* const set = std::getenv("FLASHBOB_LIVE_SECONDS");
  return set == nullptr ? 1.5 : std::strtod(set, nullptr);
}

double Quantile(std::vector<double> values, double quantile) {
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1, static_cast<size_t>(quantile * static_cast<double>(values.size())))];
}

double Sum(const std::vector<double>& values) { return std::accumulate(values.begin(), values.end(), 0.0); }

// A server of the tenants alpha, with weight 3, and beta, with weight 1.
struct Bench {
  Bench() {
    options.listen = "127.0.0.1:0";
    options.metrics_listen = "";
    options.host_memory_bytes = 256 << 20;
    options.store_memory_bytes = 1 << 20;
    options.tenants_file = testing::TempDir() + "/fair_share_" + std::to_string(getpid()) + ".txt";
    std::ofstream(options.tenants_file) << "tenants { name: \"alpha\" weight: 3 token_sha256: \"" << kAlphaHash
                                        << "\" }\ntenants { name: \"beta\" token_sha256: \"" << kBetaHash << "\" }\n";
    auto metered = std::make_unique<MeteredEngine>(cpu::CreateCpuEngine({.threads = 1}));
    engine = metered.get();
    server = TestServer::On(std::move(metered), options);
  }

  ServerOptions options;
  MeteredEngine* engine = nullptr;
  std::unique_ptr<TestServer> server;
};

// Keeps so many requests of one tenant in flight until destroyed.
class Flood {
 public:
  Flood(TestServer& server, const std::string& token, const v1::ComputeSpec& spec, int clients) {
    for (int i = 0; i < clients; ++i) {
      threads_.emplace_back([this, &server, token, spec] {
        const auto stub = server.Connect();
        while (!stopping_) {
          const auto stream = std::make_shared<ComputeStream>(*stub, token);
          {
            MutexLock lock(mutex_);
            streams_.push_back(stream);
          }
          if (stopping_) stream->Cancel();
          if (stream->Send(spec) && stream->SendInputs(spec)) stream->CloseSending();
          stream->Finish();
        }
      });
    }
  }
  ~Flood() {
    stopping_ = true;
    {
      MutexLock lock(mutex_);
      for (const auto& stream : streams_) stream->Cancel();
    }
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  std::atomic<bool> stopping_ = false;
  Mutex mutex_;
  std::vector<std::shared_ptr<ComputeStream>> streams_ FLASHBOB_GUARDED_BY(mutex_);  // also those that are done
  std::vector<std::thread> threads_;
};

// Latencies of requests sent one after the other for a while.
std::vector<double> Latencies(TestServer& server, const std::string& token, const v1::ComputeSpec& spec,
                              double seconds) {
  const auto stub = server.Connect();
  std::vector<double> latencies;
  const Clock::time_point until =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  while (Clock::now() < until) {
    const Clock::time_point began = Clock::now();
    ComputeStream stream(*stub, token);
    EXPECT_TRUE(stream.Send(spec) && stream.SendInputs(spec));
    stream.CloseSending();
    EXPECT_TRUE(ReceiveAll(stream).status.ok());
    latencies.push_back(Seconds(Clock::now() - began));
  }
  return latencies;
}

TEST(FairShareTest, FloodingTenantsShareTheDeviceByTheirWeights) {
  Bench bench;
  const int64_t of_alpha = 16000;
  const int64_t of_beta = 15000;
  double share = 0;
  for (int attempt = 0; attempt < kTries; ++attempt) {
    const Flood alpha(*bench.server, "alpha-token", ForwardSpec(1, of_alpha, 32), 3);
    const Flood beta(*bench.server, "beta-token", ForwardSpec(1, of_beta, 32), 3);
    std::set<int64_t> under_way;
    while (under_way.size() < 2) {
      for (const auto& [length, seconds] : bench.engine->TakeSlices()) under_way.insert(length);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::this_thread::sleep_for(std::chrono::duration<double>(LiveSeconds()));  // what is measured
    auto slices = bench.engine->TakeSlices();
    share = Sum(slices[of_alpha]) / (Sum(slices[of_alpha]) + Sum(slices[of_beta]));
    std::printf("share of the tenant with weight 3 of 4: %.3f, of %zu slices\n", share,
                slices[of_alpha].size() + slices[of_beta].size());
    if (std::abs(share - 0.75) <= 0.075) break;
  }
  EXPECT_NEAR(share, 0.75, 0.075);
}

TEST(FairShareTest, SmallTenantHardlyNoticesAFlood) {
  Bench bench;
  const int64_t of_flood = 16000;
  const v1::ComputeSpec small = ForwardSpec(2, 128, 64);
  double allowed = 0;
  double flooded = 1;
  for (int attempt = 0; attempt < kTries && flooded > allowed; ++attempt) {
    const double solo = Quantile(Latencies(*bench.server, "beta-token", small, LiveSeconds()), 0.99);
    const Flood flood(*bench.server, "alpha-token", ForwardSpec(1, of_flood, 32), 3);
    while (!bench.engine->TakeSlices().contains(of_flood)) std::this_thread::yield();
    flooded = Quantile(Latencies(*bench.server, "beta-token", small, LiveSeconds()), 0.99);
    const double slice = Quantile(bench.engine->TakeSlices()[of_flood], 0.99);
    allowed = 3 * solo + 2 * slice;
    std::printf("p99 of the small tenant: %.1f ms alone, %.1f ms beside the flood, whose slices take %.1f ms: %s\n",
                1e3 * solo, 1e3 * flooded, 1e3 * slice, flooded <= allowed ? "within bounds" : "too long");
  }
  EXPECT_LE(flooded, allowed);
}

}  // namespace
}  // namespace flashbob::server
