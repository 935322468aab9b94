// Several servers behind the client library's round robin: one is killed, all are restarted, and no request is lost.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <iostream>
#include <numeric>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "flashbob/client.h"
#include "kernels/base/mutex.h"
#include "tests/integration/http_get.h"
#include "tests/integration/server_process.h"

namespace flashbob::integration {
namespace {

using client::Client;
using client::Result;
using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr int kReplicas = 3;
// Longer than anything takes on a busy machine; nothing here waits for it to pass.
constexpr seconds kPatience(120);

// Three servers on fixed ports of a loopback address that no other program uses, so that each can come back on its own.
class Replicas {
 public:
  Replicas() {
    for (auto& replica : replicas_) replica.emplace(Serve(0));
    for (size_t i = 0; i < kReplicas; ++i) ports_[i] = replicas_[i]->port();
  }

  bool serving() const {
    return std::all_of(replicas_.begin(), replicas_.end(), [](const auto& each) { return each->serving(); });
  }
  // As the resolver gives the addresses of a headless Service's name.
  std::string target() const {
    std::string target = "ipv4:";
    for (int port : ports_) target += (target.back() == ':' ? "" : ",") + host_ + ":" + std::to_string(port);
    return target;
  }
  ServerProcess& operator[](size_t i) { return *replicas_[i]; }
  void Replace(size_t i) { replicas_[i].emplace(Serve(ports_[i])); }

  // Forwards that a server has finished since it started, by its own metrics.
  int Finished(size_t i) const {
    std::istringstream page(HttpGet(replicas_[i]->metrics_port(), "/metrics"));
    int sum = 0;
    for (std::string line; std::getline(page, line);) {
      const bool counts = line.starts_with("flashbob_requests_total{") &&
                          line.find("code=\"OK\"") != std::string::npos &&
                          line.find("operation=\"forward\"") != std::string::npos;
      if (counts) sum += std::stoi(line.substr(line.rfind(' ')));
    }
    return sum;
  }
  // The same of each server, once they come to so many in all: a call is counted when it has ended, which may be after
  // its client has the result. After kPatience, what there is.
  std::array<int, kReplicas> FinishedOf(int all) const {
    const auto end = steady_clock::now() + kPatience;
    std::array<int, kReplicas> finished{};
    do {
      for (size_t i = 0; i < kReplicas; ++i) finished[i] = Finished(i);
    } while (std::accumulate(finished.begin(), finished.end(), 0) < all && steady_clock::now() < end);
    return finished;
  }
  // Whether every server comes to have finished some.
  bool AllHaveFinishedSome() const {
    const auto end = steady_clock::now() + kPatience;
    for (size_t i = 0; i < kReplicas; ++i) {
      while (Finished(i) == 0) {
        if (steady_clock::now() > end) return false;
        std::this_thread::yield();
      }
    }
    return true;
  }

 private:
  ServerProcess Serve(int port) const {
    return ServerProcess::Serve({"--listen", host_ + ":" + std::to_string(port), "--devices", "cpu", "--threads", "1",
                                 "--host-memory-bytes", "64MiB"});
  }

  const std::string host_ = OwnLoopback();
  std::array<std::optional<ServerProcess>, kReplicas> replicas_;
  std::array<int, kReplicas> ports_{};
};

const std::vector<float>& Values() {
  static const std::vector<float> values(2 * 32 * 16, 0.25f);
  return values;
}

absl::StatusOr<Result> Forward(Client& client) {
  const client::Shape shape = {1, 2, 32, 16};
  return client.Forward({.q = {Values(), shape}, .k = {Values(), shape}, .v = {Values(), shape}}, {},
                        {.timeout = kPatience});
}

// Four threads that compute forwards, one after the other, until it goes. Thread safety: any thread.
class Load {
 public:
  explicit Load(const std::string& target) : client_(Client::Connect({.server = target}).value()) {
    for (auto& thread : threads_) thread = std::thread([this] { Run(); });
  }
  ~Load() { Stop(); }

  void Stop() {
    stop_ = true;
    for (auto& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
  }
  // Waits until so many more have finished; false where they do not.
  bool WaitForMore(int count) {
    const auto end = steady_clock::now() + kPatience;
    const MutexLock lock(mutex_);
    const int goal = finished_ + count;
    while (finished_ < goal) {
      if (steady_clock::now() > end) return false;
      changed_.WaitFor(mutex_, end - steady_clock::now());
    }
    return true;
  }
  int finished() const {
    const MutexLock lock(mutex_);
    return finished_;
  }
  // What those that failed, or gave something else than attention over equal keys gives, said.
  std::vector<std::string> lost() const {
    const MutexLock lock(mutex_);
    return lost_;
  }

 private:
  void Run() {
    while (!stop_) {
      const absl::StatusOr<Result> result = Forward(client_);
      const bool right = result.ok() && std::ranges::equal(result->Values<float>("o"), Values());
      const MutexLock lock(mutex_);
      ++finished_;
      if (!right) lost_.push_back(result.ok() ? "wrong values" : result.status().ToString());
      changed_.NotifyAll();
    }
  }

  Client client_;
  std::atomic<bool> stop_ = false;
  mutable Mutex mutex_;
  CondVar changed_;
  int finished_ FLASHBOB_GUARDED_BY(mutex_) = 0;
  std::vector<std::string> lost_ FLASHBOB_GUARDED_BY(mutex_);
  std::array<std::thread, 4> threads_;
};

TEST(ReplicasTest, RequestsSpreadEvenlyOverTheServers) {
  Replicas replicas;
  ASSERT_TRUE(replicas.serving());
  Client client = Client::Connect({.server = replicas.target()}).value();
  // The round begins once all three are connected.
  std::array<int, kReplicas> before{};
  for (int sent = 1; std::ranges::min(before) == 0; ++sent) {
    ASSERT_LT(sent, 10000);
    ASSERT_TRUE(Forward(client).ok());
    before = replicas.FinishedOf(sent);
  }

  constexpr int kThreads = 4;
  constexpr int kEach = 75;
  std::vector<std::thread> threads;
  std::atomic<int> failed = 0;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kEach; ++i) failed += !Forward(client).ok();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failed, 0);
  constexpr double kShare = 1.0 * kThreads * kEach / kReplicas;
  const std::array after = replicas.FinishedOf(std::accumulate(before.begin(), before.end(), kThreads * kEach));
  for (size_t i = 0; i < kReplicas; ++i) {
    const int finished = after[i] - before[i];
    std::cout << "server " << i << " finished " << finished << " of " << kThreads * kEach << "\n";
    EXPECT_NEAR(finished, kShare, kShare / 10) << "server " << i;
  }
}

TEST(ReplicasTest, EveryRequestFinishesThoughAServerIsKilled) {
  Replicas replicas;
  ASSERT_TRUE(replicas.serving());
  Load load(replicas.target());
  ASSERT_TRUE(replicas.AllHaveFinishedSome());
  replicas[1].Signal(SIGKILL);
  EXPECT_TRUE(load.WaitForMore(200));
  load.Stop();
  EXPECT_EQ(load.lost(), std::vector<std::string>());
  std::cout << load.finished() << " requests, none lost\n";
}

TEST(ReplicasTest, RollingRestartOfAllLosesNoRequest) {
  Replicas replicas;
  ASSERT_TRUE(replicas.serving());
  Load load(replicas.target());
  ASSERT_TRUE(replicas.AllHaveFinishedSome());
  for (size_t i = 0; i < kReplicas; ++i) {
    replicas[i].Signal(SIGTERM);
    EXPECT_EQ(replicas[i].Wait(kPatience), 0) << replicas[i].err();
    replicas.Replace(i);
    ASSERT_TRUE(replicas[i].serving()) << replicas[i].err();
    EXPECT_TRUE(load.WaitForMore(20));
  }
  EXPECT_TRUE(replicas.AllHaveFinishedSome()) << "a server that came back got no requests";
  load.Stop();
  EXPECT_EQ(load.lost(), std::vector<std::string>());
  std::cout << load.finished() << " requests, none lost\n";
}

TEST(ReplicasTest, CallsWithStoredTensorsStayWithTheirServer) {
  Replicas replicas;
  ASSERT_TRUE(replicas.serving());
  Client client = Client::Connect({.server = replicas.target()}).value();
  const client::TensorView view(Values(), {1, 2, 32, 16});
  const auto stored = client.PutTensors({{.name = "q", .tensor = view}, {.name = "k", .tensor = view}});
  ASSERT_TRUE(stored.ok()) << stored.status();
  constexpr int kCalls = 6;
  for (int i = 0; i < kCalls; ++i) {
    const absl::StatusOr<Result> result = client.Compute({.operation = client::Operation::kForward,
                                                          .inputs = {{.name = "q", .stored = (*stored)[0]},
                                                                     {.name = "k", .stored = (*stored)[1]},
                                                                     {.name = "v", .tensor = view}}});
    EXPECT_TRUE(result.ok()) << result.status();
  }
  std::array finished = replicas.FinishedOf(kCalls);
  std::ranges::sort(finished);
  EXPECT_EQ(finished, (std::array{0, 0, kCalls}));
}

TEST(ReplicasTest, HealthFollowsTheServersLife) {
  Replicas replicas;
  ASSERT_TRUE(replicas.serving());
  Client client = Client::Connect({.server = replicas.target()}).value();
  EXPECT_TRUE(client.CheckHealth().ok()) << client.CheckHealth();
  for (size_t i = 0; i < kReplicas; ++i) {
    replicas[i].Signal(SIGTERM);
    ASSERT_EQ(replicas[i].Wait(kPatience), 0) << replicas[i].err();
  }
  EXPECT_EQ(client.CheckHealth().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace flashbob::integration
