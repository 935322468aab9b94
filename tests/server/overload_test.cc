// More load than the server can take: it refuses some, and what it takes is served as fast as ever.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "tests/server/testing/test_server.h"

namespace flashbob::server {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kQueue = 8;
constexpr auto kSlice = std::chrono::milliseconds(4);
// As many requests as the server holds: those that wait, and a quantum of those that are about to run.
constexpr int kFull = kQueue + 5;

struct Load {
  double median_seconds = 0;  // of those that were admitted
  int64_t admitted = 0;
  int64_t refused = 0;
};

// So many clients send one request after the other, and again at once where they are refused.
Load Offer(TestServer& server, int clients, std::chrono::milliseconds duration) {
  const v1::ComputeSpec spec = ForwardSpec(1, 16, 8);
  std::atomic<int64_t> refused = 0;
  std::vector<std::vector<double>> latencies(static_cast<size_t>(clients));
  const Clock::time_point until = Clock::now() + duration;
  std::vector<std::thread> threads;
  for (int client = 0; client < clients; ++client) {
    threads.emplace_back([&, client] {
      const auto stub = server.Connect();
      while (Clock::now() < until) {
        const Clock::time_point began = Clock::now();
        const Computed computed = Compute(*stub, spec);
        if (computed.status.ok()) {
          latencies[static_cast<size_t>(client)].push_back(std::chrono::duration<double>(Clock::now() - began).count());
          continue;
        }
        const WireError error = Decode(computed.status);
        EXPECT_EQ(error.code, grpc::StatusCode::RESOURCE_EXHAUSTED) << error.text;
        EXPECT_EQ(error.reason, "QUEUE_FULL") << error.text;
        EXPECT_GT(error.retry_seconds.value_or(0), 0) << error.text;
        ++refused;
        // A tenth of the delay that it was told: still far more is offered than is taken.
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<double> all;
  for (const auto& of_client : latencies) all.insert(all.end(), of_client.begin(), of_client.end());
  if (all.empty()) return {};
  std::nth_element(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2), all.end());
  return {all[all.size() / 2], static_cast<int64_t>(all.size()), refused};
}

TEST(OverloadTest, LatencyOfWhatIsAdmittedStaysFlatAtTwiceTheLoad) {
  ServerOptions options = TestServer::DefaultOptions();
  options.max_queued_requests = kQueue;
  TestServer server({}, options);
  server.engine().OnSlice([] { std::this_thread::sleep_for(kSlice); });  // a device's work
  Load full;
  Load twice;
  for (int attempt = 0; attempt < 3; ++attempt) {
    full = Offer(server, kFull, std::chrono::milliseconds(500));
    twice = Offer(server, 2 * kFull, std::chrono::milliseconds(500));
    std::printf("median latency: %.1f ms of %lld at full load; %.1f ms of %lld at twice that, %lld refused\n",
                1e3 * full.median_seconds, static_cast<long long>(full.admitted), 1e3 * twice.median_seconds,
                static_cast<long long>(twice.admitted), static_cast<long long>(twice.refused));
    if (twice.median_seconds <= 1.25 * full.median_seconds) break;
  }
  EXPECT_GT(twice.refused, 0);
  EXPECT_GT(twice.admitted, full.admitted / 2) << "refusing must not cost what serving needs";
  EXPECT_LE(twice.median_seconds, 1.25 * full.median_seconds);
  EXPECT_TRUE(server.CleanAndServing());
}

}  // namespace
}  // namespace flashbob::server
