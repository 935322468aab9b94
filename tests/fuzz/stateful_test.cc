// A random program against a live server: several tenants put, compute, get and delete, with random data and shapes, in
// any order and at any time: right streams, wrong messages, streams that are cut, closed half-way or cancelled.
//
// Promises: a right request succeeds, or is told to come back; its outputs have the very bits that the engine computes
// here, and what was stored is what comes back. A wrong one ends with an error that has a reason. No tenant reaches
// another's tensors. At each checkpoint nothing is held any more: no call, no byte, no stored tensor.
//
// FLASHBOB_FUZZ_OPERATIONS sets the number of calls, FLASHBOB_FUZZ_CLIENTS that of clients at a time, FLASHBOB_SEED the
// program of each client: with one client, all of it.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <map>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/cpu_engine.h"
#include "server/server.h"
#include "spdlog/sinks/null_sink.h"
#include "tests/fuzz/client_program.h"
#include "tests/seed.h"

namespace flashbob::fuzz {
namespace {

using server::Server;
using server::ServerOptions;

int64_t FromEnvironment(const char* name, int64_t otherwise) {
  const char* const set = std::getenv(name);
  return set == nullptr ? otherwise : std::strtoll(set, nullptr, 10);
}

// Runs on, and can be set forward: leases end.
class JumpingClock final : public server::Clock {
 public:
  server::TimePoint Now() const override { return std::chrono::steady_clock::now() + server::Duration(jumped_.load()); }
  void Jump(server::Duration duration) { jumped_ += duration.count(); }

 private:
  std::atomic<int64_t> jumped_ = 0;
};

// Tokens are the tenants' names.
constexpr char kTenants[] = R"(
  tenants { name: "alpha" token_sha256: "8ed3f6ad685b959ead7022518e1af76cd816f8e8ec7ccdda1ed4018e8f2223f8" }
  tenants { name: "beta" token_sha256: "f44e64e75f3948e9f73f8dfa94721c4ce8cbb4f265c4790c702b2d41cfbf2753"
            max_in_flight: 1 }
  tenants { name: "gamma" token_sha256: "be9d587defa1f0c09ef49eb17e206983a5f8f8289e4281860bd0ee5a19592c67"
            max_bytes: 131072 priority: 3 weight: 2 })";

class Bench {
 public:
  Bench() : log_(server::LogLevel::kError, server::LogFormat::kText, std::make_shared<spdlog::sinks::null_sink_mt>()) {
    std::string pattern = testing::TempDir() + "stateful-XXXXXX";
    const int descriptor = mkstemp(pattern.data());
    close(descriptor);
    tenants_file_ = pattern;
    std::ofstream(tenants_file_) << kTenants;
    ServerOptions options;
    options.listen = "127.0.0.1:0";
    options.metrics_listen = "";
    options.tenants_file = tenants_file_;
    options.host_memory_bytes = 1 << 20;  // a few requests at a time: some wait
    options.store_memory_bytes = 512 << 10;
    options.max_queued_requests = 3;  // some are refused
    options.max_chunk_bytes = 1 << 20;
    options.idle_upload_seconds = 5;
    Server::Environment environment;
    environment.engines.push_back(cpu::CreateCpuEngine(EngineOptions()));
    environment.clock = &clock_;
    environment.log = &log_;
    absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(options, std::move(environment));
    if (!server.ok()) throw std::runtime_error(server.status().ToString());
    server_ = *std::move(server);
  }
  ~Bench() { unlink(tenants_file_.c_str()); }

  // The same slices on the server and here, so that the bits are the same.
  static cpu::CpuEngineOptions EngineOptions() { return {.threads = 1, .slice_flops = 20000}; }

  int port() const { return server_->port(); }

  // Whether all that was held is free, once leases are over.
  testing::AssertionResult Clean() {
    if (!server_->calls().WaitUntilEmpty(std::chrono::seconds(20))) {
      return testing::AssertionFailure() << server_->calls().size() << " calls are still in flight";
    }
    clock_.Jump(std::chrono::hours(48));
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    std::string held = Held();
    while (!held.empty() && std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      held = Held();
    }
    if (!held.empty()) return testing::AssertionFailure() << held;
    return testing::AssertionSuccess();
  }

 private:
  // What is held; empty where nothing is.
  std::string Held() {
    std::string text;
    const auto add = [&](const std::string& what, int64_t count) {
      if (count != 0) absl::StrAppend(&text, what, ": ", count, "; ");
    };
    add("bytes of host memory", server_->HostMemory().reserved_bytes);
    add("waiting for host memory", server_->HostMemory().waiting);
    add("stored tensors", server_->store().GetUse().tensors);
    add("stored bytes", server_->store().GetUse().bytes);
    int state = 0;
    for (int64_t count : server_->scheduler().CountByState()) add(absl::StrCat("requests in state ", state++), count);
    for (const char* tenant : {"alpha", "beta", "gamma"}) {
      const v1::TenantInfo info = InfoOf(port(), tenant);
      add(absl::StrCat("bytes of ", tenant), info.used_bytes());
      add(absl::StrCat("requests of ", tenant), info.in_flight());
    }
    return text;
  }

  JumpingClock clock_;
  server::EventLog log_;
  std::string tenants_file_;
  std::unique_ptr<Server> server_;
};

TEST(StatefulTest, RandomProgramsOfSeveralTenantsKeepEveryPromise) {
  const uint64_t seed = testing_seed::Seed();
  const int64_t operations = FromEnvironment("FLASHBOB_FUZZ_OPERATIONS", 2000);
  const int64_t clients = FromEnvironment("FLASHBOB_FUZZ_CLIENTS", 5);
  constexpr int64_t kCheckpoint = 1000;
  constexpr const char* kNames[] = {"alpha", "beta", "gamma"};
  Bench bench;
  Statistics statistics;
  SharedHandles handles;
  for (int64_t done = 0; done < operations; done += kCheckpoint) {
    std::vector<std::thread> threads;
    for (int64_t client = 0; client < clients; ++client) {
      threads.emplace_back([&, client] {
        ClientProgram program(bench.port(), kNames[client % 3], Bench::EngineOptions(),
                              seed + static_cast<uint64_t>(done * 100 + client), handles, statistics);
        for (int64_t i = 0; i < kCheckpoint / clients && !testing::Test::HasFailure(); ++i) program.Step();
      });
    }
    for (std::thread& thread : threads) thread.join();
    ASSERT_FALSE(testing::Test::HasFailure()) << "after " << done << " calls";
    ASSERT_TRUE(bench.Clean()) << "after " << done << " calls";
    handles.Clear();
  }
  std::printf("%s\n", statistics.ToString().c_str());
  // That it tried what it is for.
  for (const char* outcome : {"Compute OK", "PutTensors OK", "GetTensors OK", "DeleteTensors OK", "Compute CANCELLED",
                              "Compute BAD_SPEC", "Compute BAD_CHUNK", "GetTensors HANDLE"}) {
    EXPECT_GT(statistics.Count(outcome), 0) << outcome;
  }
}

}  // namespace
}  // namespace flashbob::fuzz
