// The client library and a server with a network between them that resets, stalls or dawdles, at every stage of a call:
// what the client sees, and that the server holds nothing afterwards.
#include <gtest/gtest.h>

#include <random>
#include <span>
#include <string>
#include <vector>

#include "flashbob/client.h"
#include "kernels/cpu/cpu_engine.h"
#include "tests/seed.h"
#include "tests/server/testing/tcp_relay.h"
#include "tests/server/testing/test_server.h"

namespace flashbob::server {
namespace {

using client::Client;
using std::chrono::milliseconds;
using Way = TcpRelay::Way;

constexpr int64_t kLength = 1024;
constexpr int64_t kDim = 64;
const client::Shape kQueries = {1, 1, kLength, kDim};

// How far a call comes before the network fails: 280 kB are sent, 270 come back.
struct Place {
  const char* name;
  Way way;
  int64_t bytes;
};
void PrintTo(const Place& place, std::ostream* out) { *out << place.name; }

constexpr Place kPlaces[] = {
    {"BeforeTheSpec", Way::kToServer, 0},
    {"WithinTheSpec", Way::kToServer, 100},
    {"WithinTheFirstTensor", Way::kToServer, 100000},
    {"NearTheEndOfTheInputs", Way::kToServer, 270000},
    {"BeforeTheFirstAnswer", Way::kToClient, 0},
    {"WithinTheFirstAnswer", Way::kToClient, 50},
    {"WithinTheOutput", Way::kToClient, 100000},
    {"NearTheEndOfTheOutput", Way::kToClient, 262000},
};

class NetworkFaultTest : public testing::TestWithParam<Place> {
 protected:
  NetworkFaultTest() : q_(kLength * kDim), few_(16 * kDim) {
    std::mt19937_64 random(testing_seed::Seed());
    std::normal_distribution<float> normal;
    for (float& value : q_) value = normal(random);
    for (float& value : few_) value = normal(random);
    server_ = TestServer::On(cpu::CreateCpuEngine({.threads = 1}), TestServer::DefaultOptions());
    relay_ = std::make_unique<TcpRelay>(server_->port());
  }

  // Over the relay.
  Client Connect(int max_attempts) const {
    return Client::Connect({.server = name(), .retry = {.max_attempts = max_attempts}}).value();
  }
  std::string name() const { return "127.0.0.1:" + std::to_string(relay_->port()); }
  client::Inputs Inputs() const {
    const client::Shape keys = {1, 1, 16, kDim};
    return {.q = {q_, kQueries}, .k = {few_, keys}, .v = {few_, keys}};
  }
  // What comes without a fault, on a connection of its own.
  std::vector<float> Expected() const {
    Client direct = Client::Connect({.server = "127.0.0.1:" + std::to_string(server_->port())}).value();
    return Values(direct.Forward(Inputs()));
  }
  static std::vector<float> Values(const absl::StatusOr<client::Result>& result) {
    EXPECT_TRUE(result.ok()) << result.status();
    if (!result.ok()) return {};
    const std::span<const float> o = result->Values<float>("o");
    return {o.begin(), o.end()};
  }

  std::vector<float> q_;
  std::vector<float> few_;
  std::unique_ptr<TestServer> server_;
  std::unique_ptr<TcpRelay> relay_;
};

TEST_P(NetworkFaultTest, ResetCostsARetryAndNotTheAnswer) {
  Client client = Connect(8);
  relay_->ResetAfter(GetParam().way, GetParam().bytes);
  EXPECT_EQ(Values(client.Forward(Inputs())), Expected());
  EXPECT_TRUE(server_->CleanAndServing());
}

TEST_P(NetworkFaultTest, ResetIsUnavailableAndNamesTheServerWhereNothingIsRetried) {
  Client client = Connect(1);
  relay_->ResetAfter(GetParam().way, GetParam().bytes);
  const absl::Status status = client.Forward(Inputs()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_EQ(std::string(status.message()).rfind("server " + name(), 0), 0u) << status;
  EXPECT_TRUE(server_->CleanAndServing());
}

// Nothing passes any more in one direction, while the connection stays: the client's time limit ends the call on both
// sides, for the server was told of it with the call.
TEST_P(NetworkFaultTest, StallEndsTheCallAtItsTimeoutAndTheServerFreesWhatItHeld) {
  Client client = Connect(8);
  relay_->SilenceAfter(GetParam().way, GetParam().bytes);
  const auto began = std::chrono::steady_clock::now();
  const absl::Status status = client.Forward(Inputs(), {}, {.timeout = milliseconds(300)}).status();
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(5));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_EQ(std::string(status.message()), "server " + name() + ": no result within 0.3 s");
  EXPECT_TRUE(server_->CleanAndServing());
}

INSTANTIATE_TEST_SUITE_P(Places, NetworkFaultTest, testing::ValuesIn(kPlaces),
                         [](const auto& info) { return std::string(info.param.name); });

using SlowNetworkTest = NetworkFaultTest;

TEST_F(SlowNetworkTest, DelayOnlyMakesACallLonger) {
  relay_->Delay(milliseconds(20));
  EXPECT_EQ(Values(Connect(1).Forward(Inputs())), Expected());
  EXPECT_TRUE(server_->CleanAndServing());
}

TEST_F(SlowNetworkTest, TensorsWhoseHandlesWereLostOnTheWayAreStoredOnce) {
  Client client = Connect(8);
  // Its calls with stored tensors have a connection of their own, to be made before anything is counted.
  ASSERT_TRUE(client.DeleteTensors({}).ok());
  relay_->ResetAfter(Way::kToClient, 0);
  const auto stored = client.PutTensors({{"q", {q_, kQueries}}, {"k", {few_, {1, 1, 16, kDim}}}});
  ASSERT_TRUE(stored.ok()) << stored.status();
  EXPECT_EQ(server_->server().store().GetUse().tensors, 2);
  const auto back = client.GetTensors(*stored);
  ASSERT_TRUE(back.ok()) << back.status();
  const std::span<const float> q = (*back)[0].Values<float>();
  EXPECT_EQ(std::vector<float>(q.begin(), q.end()), q_);
  EXPECT_EQ(client.DeleteTensors(*stored).value_or(-1), 2);
  EXPECT_TRUE(server_->CleanAndServing());
  EXPECT_EQ(server_->server().store().GetUse().bytes, 0);
}

}  // namespace
}  // namespace flashbob::server
