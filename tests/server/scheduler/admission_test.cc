// Who of those that wait for host memory has it next.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/server/testing/scheduler_bench.h"

namespace flashbob::server {
namespace {

using std::chrono::seconds;

// Takes so much of the host memory, with what its messages need on their way.
Computation Share(double share) {
  return Forward(static_cast<int64_t>(share * static_cast<double>(kHostLimit - kMessageBytes) / 4 / 32 / 1.13));
}

TEST(AdmissionTest, RequestsWaitForMemoryInTheirOrder) {
  Bench bench;
  Sent holder(bench, Big());
  ASSERT_TRUE(holder.submitted->admitted);
  Sent large(bench, Big());
  Sent small(bench, Forward(8));
  EXPECT_FALSE(large.submitted->admitted);
  EXPECT_FALSE(small.submitted->admitted) << "it would fit, but another waited before";
  EXPECT_EQ(bench.In(RequestState::kValidated), 2);
  holder.Release();
  large.listener->WaitUntilAdmitted();
  small.listener->WaitUntilAdmitted();
  EXPECT_EQ(bench.In(RequestState::kReceiving), 2);
}

TEST(AdmissionTest, CancelledRequestThatWaitsForMemoryLetsTheNextPass) {
  Bench bench;
  Sent holder(bench, Big());
  Sent large(bench, Big());
  Sent small(bench, Forward(8));
  large.Release();
  small.listener->WaitUntilAdmitted();
  EXPECT_FALSE(large.listener->admitted());
}

TEST(AdmissionTest, TenantWithLeastHostMemoryIsAdmittedNext) {
  Bench bench;
  const auto greedy = Tenant::Create({.name = "greedy"});
  Sent holder(bench, Big(), kNoDeadline, greedy);
  Sent first_in_line(bench, Big(), kNoDeadline, greedy);
  bench.WaitUntilOneWaits();
  Sent next(bench, Big(), kNoDeadline, greedy);
  Sent modest(bench, Big(), kNoDeadline, Tenant::Create({.name = "modest"}));
  holder.Release();
  first_in_line.listener->WaitUntilAdmitted();
  first_in_line.Ready();
  bench.engine.Step(1);
  ASSERT_TRUE(first_in_line.listener->WaitUntilComputed().ok());
  first_in_line.Release();
  modest.listener->WaitUntilAdmitted();
  EXPECT_FALSE(next.listener->admitted());
}

TEST(AdmissionTest, RequestsWithoutBytesComeAndGoBesideEachOther) {
  Bench bench;
  Sent some(bench, Forward(8));
  std::vector<std::unique_ptr<Sent>> empty;
  for (int i = 0; i < 10; ++i) {
    empty.push_back(std::make_unique<Sent>(bench, Forward(0)));
    ASSERT_TRUE(empty.back()->submitted->admitted);
  }
  some.Release();
  for (const auto& sent : empty) sent->Release();
  EXPECT_EQ(bench.In(RequestState::kReceiving), 0);
}

TEST(AdmissionTest, SmallRequestOfAnotherTenantPassesALargeOneThatWaits) {
  Bench bench;
  const auto large = Tenant::Create({.name = "large"});
  const auto small = Tenant::Create({.name = "small"});
  Sent holder(bench, Share(0.5), kNoDeadline, large);
  Sent waiting(bench, Share(0.8), kNoDeadline, large);
  bench.WaitUntilOneWaits();
  Sent own(bench, Forward(8), kNoDeadline, large);
  Sent passing(bench, Forward(8), kNoDeadline, small);
  passing.listener->WaitUntilAdmitted();
  EXPECT_FALSE(waiting.listener->admitted());
  EXPECT_FALSE(own.listener->admitted()) << "nobody passes an older request of its own tenant";
  holder.Release();
  waiting.listener->WaitUntilAdmitted();
  own.listener->WaitUntilAdmitted();
}

TEST(AdmissionTest, LargeRequestIsNotPassedForEver) {
  Bench bench;
  const auto small = Tenant::Create({.name = "small"});
  Sent holder(bench, Share(0.4));
  Sent waiting(bench, Share(0.8));
  bench.WaitUntilOneWaits();
  bench.clock.Step(seconds(2));  // its patience is over
  std::vector<std::unique_ptr<Sent>> passing;
  const int64_t before = bench.pool.Use().reserved_bytes;
  for (int i = 0; i < 16; ++i) passing.push_back(std::make_unique<Sent>(bench, Share(0.04), kNoDeadline, small));
  passing.front()->listener->WaitUntilAdmitted();
  holder.Release();
  waiting.listener->WaitUntilAdmitted();
  EXPECT_LE(bench.pool.Use().high_water_bytes, before + kHostLimit / 8 + kHostLimit * 9 / 10);
  int admitted = 0;
  for (const auto& sent : passing) admitted += sent->listener->admitted() ? 1 : 0;
  EXPECT_LT(admitted, 16) << "some wait until it is done";
  waiting.Release();
  for (const auto& sent : passing) sent->listener->WaitUntilAdmitted();
}

}  // namespace
}  // namespace flashbob::server
