// Calls that run on their own: many at once, callbacks, cancellation.
#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <vector>

#include "flashbob/client.h"
#include "tests/client/fake_service.h"
#include "tests/client/small_problem.h"

namespace flashbob::client {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

TEST(CallTest, ManyCallsRunAtOnce) {
  // Nobody is answered before all have come.
  constexpr int kCalls = 8;
  Mutex mutex;
  CondVar changed;
  int arrived = 0;
  const FakeService::Step echo = Echo(v1::TENSOR_NAME_O);
  const FakeService service({[&](grpc::ServerContext& context, const v1::ComputeSpec& spec, ServerStream& stream) {
    {
      const MutexLock lock(mutex);
      ++arrived;
      changed.NotifyAll();
      while (arrived < kCalls) changed.Wait(mutex);
    }
    return echo(context, spec, stream);
  }});
  Client client = ConnectTo(service);
  std::vector<std::vector<float>> inputs;
  for (int i = 0; i < kCalls; ++i) inputs.push_back(Iota(24, static_cast<float>(i)));
  std::vector<Call> calls;
  for (const std::vector<float>& input : inputs) {
    calls.push_back(client.ComputeAsync({.inputs = {{"q", {input, kShape}}}}));
  }
  for (int i = 0; i < kCalls; ++i) {
    const absl::StatusOr<Result> result = calls[static_cast<size_t>(i)].Take();
    ASSERT_TRUE(result.ok()) << result.status();
    const std::span<const float> o = result->Values<float>("o");
    EXPECT_EQ(std::vector<float>(o.begin(), o.end()), inputs[static_cast<size_t>(i)]);
  }
}

TEST(CallTest, CallbacksRunOnceBeforeAndAfterTheEnd) {
  Gate gate;
  const FakeService service({HoldUntil(gate), Echo(v1::TENSOR_NAME_O)});
  Client client = ConnectTo(service);
  const Problem problem;
  Call call = client.ComputeAsync({.inputs = problem.inputs().Named()});
  EXPECT_FALSE(call.done());
  EXPECT_FALSE(call.WaitFor(milliseconds(1)));
  int early = 0;
  call.OnDone([&](const absl::StatusOr<Result>&) { ++early; });
  gate.Open();
  EXPECT_EQ(call.Wait().status().code(), absl::StatusCode::kInternal);  // this step sends no result
  EXPECT_TRUE(call.done());
  EXPECT_TRUE(call.WaitFor(nanoseconds(0)));
  EXPECT_EQ(early, 1);
  int late = 0;
  call.OnDone([&](const absl::StatusOr<Result>&) { ++late; });
  EXPECT_EQ(late, 1);
}

TEST(CallTest, CancelEndsIt) {
  Gate gate;
  const FakeService service({HoldUntil(gate)});
  Client client = ConnectTo(service);
  const Problem problem;
  Call call = client.ComputeAsync({.inputs = problem.inputs().Named()});
  call.Cancel();
  EXPECT_EQ(call.Wait().status().code(), absl::StatusCode::kCancelled);
  gate.Open();
}

TEST(CallTest, CancellationOfTheCallerEndsItToo) {
  Gate gate;
  const FakeService service({HoldUntil(gate)});
  Client client = ConnectTo(service);
  const Problem problem;
  Cancellation all;
  Call first = client.ComputeAsync({.inputs = problem.inputs().Named()}, {.cancellation = all});
  Call second = client.ComputeAsync({.inputs = problem.inputs().Named()}, {.cancellation = all});
  first.Cancel();
  EXPECT_EQ(first.Wait().status().code(), absl::StatusCode::kCancelled);
  EXPECT_FALSE(all.cancelled());  // one call's end is not the others'
  EXPECT_FALSE(second.done());
  all.Cancel();
  EXPECT_EQ(second.Wait().status().code(), absl::StatusCode::kCancelled);
  gate.Open();
}

TEST(CallTest, DroppedCallIsCancelledAndWaitedFor) {
  Gate gate;
  bool done = false;
  {
    const FakeService service({HoldUntil(gate)});
    const Problem problem;
    {
      // The client is gone before its call.
      std::optional<Client> client = ConnectTo(service);
      Call call = client->ComputeAsync({.inputs = problem.inputs().Named()});
      client.reset();
      call.OnDone([&](const absl::StatusOr<Result>& result) {
        EXPECT_EQ(result.status().code(), absl::StatusCode::kCancelled);
        done = true;
      });
    }
    EXPECT_TRUE(done);
    gate.Open();
  }
}

}  // namespace
}  // namespace flashbob::client
