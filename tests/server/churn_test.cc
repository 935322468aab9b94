// Many requests, most of which end badly: nothing that they held may stay.
//
// FLASHBOB_CHURN_REQUESTS sets how many are sent; by default few enough for every day.
#include <gtest/gtest.h>
#include <malloc.h>

#include <array>
#include <atomic>
#include <fstream>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "tests/seed.h"
#include "tests/server/testing/tcp_relay.h"
#include "tests/server/testing/test_server.h"

namespace flashbob::server {
namespace {

int64_t Requests() {
  const char* const set = std::getenv("FLASHBOB_CHURN_REQUESTS");
  return set == nullptr ? 400 : std::strtoll(set, nullptr, 10);
}

// Without what malloc keeps for later.
int64_t ResidentBytes() {
  malloc_trim(0);
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages >> pages;
  return pages * 4096;
}

// How a client leaves: in which state of its request, or not at all.
enum class Leaves : uint8_t {
  kBeforeTheSpec,
  kAfterTheSpec,
  kWhileUploading,
  kWhenAllIsSent,
  kWhileComputing,
  kWhileDownloading,
  kWhenDone
};
constexpr int kNumLeaves = 7;

v1::ComputeSpec Spec(int64_t length, bool keep) {
  v1::ComputeSpec spec = ForwardSpec(1, length, 16);
  if (!keep) return spec;
  v1::OutputTensor& output = *spec.add_outputs();
  output.set_name(v1::TENSOR_NAME_O);
  output.mutable_keep();
  return spec;
}

void DeleteKept(v1::AttentionService::Stub& stub, const v1::ComputeResult& result) {
  v1::DeleteTensorsRequest request;
  for (const v1::ResultTensor& tensor : result.tensors()) {
    if (!tensor.handle().empty()) request.add_handles(tensor.handle());
  }
  if (request.handles_size() == 0) return;
  grpc::ClientContext context;
  v1::DeleteTensorsResponse response;
  EXPECT_TRUE(stub.DeleteTensors(&context, request, &response).ok());
}

// Goes on until its client is to leave. What a request that is kept left in the store is deleted.
void Converse(v1::AttentionService::Stub& stub, ComputeStream& stream, const v1::ComputeSpec& spec, Leaves leaves) {
  if (leaves == Leaves::kBeforeTheSpec) return;
  if (!stream.Send(spec) || leaves == Leaves::kAfterTheSpec) return;
  if (leaves == Leaves::kWhileUploading) {
    stream.Receive();
    stream.Send(0, 0, std::string(4, 'a'));
    return;
  }
  if (!stream.SendInputs(spec)) return;
  stream.CloseSending();
  if (leaves == Leaves::kWhenAllIsSent) return;
  while (const std::optional<v1::ComputeResponse> response = stream.Receive()) {
    if (leaves == Leaves::kWhileComputing && response->has_accepted()) return;
    if (response->has_result()) DeleteKept(stub, response->result());
    if (leaves == Leaves::kWhileDownloading && response->has_result()) return;
  }
}

void Churn(TestServer& server, int64_t requests, uint64_t seed) {
  constexpr int kClients = 4;
  std::vector<std::thread> clients;
  std::atomic<int64_t> left = requests;
  for (uint64_t client = 0; client < kClients; ++client) {
    clients.emplace_back([&, client] {
      std::mt19937_64 random(seed + client);
      while (left > 0) {
        TcpRelay relay(server.server().port());
        const auto stub = v1::AttentionService::NewStub(ConnectTo(relay.port()));
        for (int i = 0; i < 25 && left-- > 0; ++i) {
          const auto leaves = static_cast<Leaves>(random() % kNumLeaves);
          // Outputs are kept only where the client stays to hear their handles; the others' lease would end too late.
          const bool keep = leaves == Leaves::kWhenDone && random() % 2 == 0;
          const v1::ComputeSpec spec = Spec(static_cast<int64_t>(random() % 3000), keep);
          ComputeStream stream(*stub);
          Converse(*stub, stream, spec, leaves);
          if (random() % 25 == 0) {  // the whole process dies, not only this call
            relay.Cut();
            break;
          }
          stream.Cancel();
        }
      }
    });
  }
  for (std::thread& client : clients) client.join();
}

TEST(ChurnTest, CountersReturnToTheStartAndMemoryIsFlat) {
  const uint64_t seed = testing_seed::Seed();
  ServerOptions options = TestServer::DefaultOptions();
  options.host_memory_bytes = 2 << 20;  // two or three of the larger requests: some wait for memory
  options.store_memory_bytes = 1 << 20;
  options.max_queued_requests = 3;       // some are refused
  options.log_level = LogLevel::kError;  // the log is kept in this process
  TestServer server({.slices = 4, .workspace_bytes = 1000}, options);
  Churn(server, 2 * Requests(), seed);  // buffers, arenas and threads' stacks come to be
  ASSERT_TRUE(server.CleanAndServing());
  const int64_t before = ResidentBytes();
  Churn(server, Requests(), seed + 100);
  EXPECT_TRUE(server.CleanAndServing());
  const int64_t after = ResidentBytes();
  std::printf("resident: %.1f MiB before, %.1f MiB after %lld requests\n", static_cast<double>(before) / (1 << 20),
              static_cast<double>(after) / (1 << 20), static_cast<long long>(Requests()));
  EXPECT_LE(static_cast<double>(after), 1.05 * static_cast<double>(before));
  EXPECT_EQ(server.server().store().GetUse().tensors, 0);
  EXPECT_EQ(server.server().store().GetUse().bytes, 0);
  EXPECT_EQ(server.server().HostMemory().waiting, 0);
}

TEST(ChurnTest, FiveHundredRequestsPassThroughAPoolThatFitsThree) {
  constexpr int kRequests = 500;
  constexpr int kClients = 20;
  const v1::ComputeSpec spec = ForwardSpec(1, 1000, 16);
  int64_t each = 64000;  // what one message may hold on its way
  for (int i = 0; i < 4; ++i) each += HostMemoryPool::BlockBytes(64000);
  each += HostMemoryPool::BlockBytes(4000);  // lse
  ServerOptions options = TestServer::DefaultOptions();
  options.host_memory_bytes = 3 * each + each / 2;
  options.max_queued_requests = kRequests;
  TestServer server({.slices = 2}, options);
  // All specs are there before the first tensor is, in order: those that are admitted first must be those that clients
  // send first.
  const auto known = [&] {
    const auto states = server.server().scheduler().CountByState();
    return std::accumulate(states.begin(), states.end(), int64_t{0});
  };
  std::vector<std::unique_ptr<v1::AttentionService::Stub>> stubs;
  std::vector<std::unique_ptr<ComputeStream>> streams;
  for (int i = 0; i < kRequests; ++i) {
    if (i % 100 == 0) stubs.push_back(server.Connect());
    streams.push_back(std::make_unique<ComputeStream>(*stubs.back()));
    ASSERT_TRUE(streams.back()->Send(spec));
    while (known() <= i) std::this_thread::yield();
  }
  std::atomic<int> next = 0;
  std::atomic<int> done = 0;
  std::vector<std::thread> clients;
  for (int client = 0; client < kClients; ++client) {
    clients.emplace_back([&] {
      for (int i = next++; i < kRequests; i = next++) {
        ComputeStream& stream = *streams[static_cast<size_t>(i)];
        if (stream.SendInputs(spec)) stream.CloseSending();
        const Computed computed = ReceiveAll(stream);
        EXPECT_TRUE(computed.status.ok()) << computed.status.error_message();
        done += computed.status.ok() ? 1 : 0;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(done, kRequests);
  EXPECT_LE(server.server().HostMemory().high_water_bytes, options.host_memory_bytes);
  EXPECT_GT(server.server().HostMemory().high_water_bytes, 2 * each);
  EXPECT_TRUE(server.CleanAndServing());
}

}  // namespace
}  // namespace flashbob::server
