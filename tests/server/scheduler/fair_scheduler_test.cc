// The scheduler with a clock and a device that are stepped by hand.
#include "server/scheduler/fair_scheduler.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <thread>

#include "server/base/errors.h"
#include "tests/seed.h"
#include "tests/server/testing/scheduler_bench.h"

namespace flashbob::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(RequestStateTest, MovesOneStepForwardOrStraightToReleased) {
  const auto released = static_cast<int>(RequestState::kReleased);
  for (int from = 0; from < kNumRequestStates; ++from) {
    for (int to = 0; to < kNumRequestStates; ++to) {
      EXPECT_EQ(MayMove(static_cast<RequestState>(from), static_cast<RequestState>(to)),
                from != released && (to == from + 1 || to == released))
          << Name(static_cast<RequestState>(from)) << " to " << Name(static_cast<RequestState>(to));
    }
  }
}

TEST(FairSchedulerTest, RequestPassesThroughItsStates) {
  Bench bench;
  Sent sent(bench, Forward(16));
  ASSERT_TRUE(sent.submitted.ok());
  EXPECT_TRUE(sent.submitted->admitted);
  EXPECT_EQ(bench.In(RequestState::kReceiving), 1);
  sent.Ready();
  bench.engine.WaitForLaunches(1);
  EXPECT_EQ(bench.In(RequestState::kRunning), 1);
  bench.engine.Step(1);
  EXPECT_TRUE(sent.listener->WaitUntilComputed().ok());
  EXPECT_EQ(bench.In(RequestState::kSending), 1);
  sent.Release();
  for (int64_t count : bench.scheduler->CountByState()) EXPECT_EQ(count, 0);
  EXPECT_EQ(bench.pool.Use().reserved_bytes, 0);
}

// Fills the inputs, runs, compares the output with the engine's pattern.
void ExpectPattern(Bench& bench) {
  Sent sent(bench, Forward(100));
  ASSERT_TRUE(sent.submitted.ok());
  sent.WaitUntilAdmitted();
  const Computation& computation = sent.request().computation();
  std::vector<std::vector<std::byte>> copies;
  TensorPointers inputs;
  computation.inputs().ForEach([&](TensorName name) {
    auto& copy = copies.emplace_back(static_cast<size_t>(computation.problem().NumBytes(name)));
    for (size_t i = 0; i < copy.size(); ++i) copy[i] = static_cast<std::byte>(i * 7 + copies.size());
    std::memcpy(sent.request().HostData(name), copy.data(), copy.size());
    inputs.Set(name, copy.data());
  });
  bench.engine.LetGo();
  sent.Ready();
  ASSERT_TRUE(sent.listener->WaitUntilComputed().ok());
  const std::vector<std::byte> expected = PatternOf(computation, inputs, TensorName::kO);
  EXPECT_EQ(std::memcmp(sent.request().HostData(TensorName::kO), expected.data(), expected.size()), 0);
}

TEST(FairSchedulerTest, ComputesInPlaceWhereHostMemoryIsDeviceMemory) {
  Bench bench({.slices = 3, .workspace_bytes = 1000});
  ExpectPattern(bench);
  EXPECT_EQ(bench.scheduler->Devices()[0].memory.high_water_bytes, 0);
}

TEST(FairSchedulerTest, CopiesThereAndBackWhereDeviceMemoryIsApart) {
  Bench bench({.slices = 3, .unified_memory = false, .workspace_bytes = 1000});
  ExpectPattern(bench);
  EXPECT_EQ(bench.scheduler->Devices()[0].memory.reserved_bytes, 0);
  EXPECT_EQ(bench.scheduler->Devices()[0].memory.high_water_bytes, 4 * 3328 + 1024) << "3200 and 1000, aligned";
  EXPECT_EQ(bench.engine.live_device_bytes(), 0) << "device memory is free before the outputs are sent";
}

TEST(FairSchedulerTest, SmallRequestIsCopiedByTheThreadThatComputesIt) {
  Bench bench({.slices = 3, .unified_memory = false, .workspace_bytes = 1000}, 100, false, 1 << 20);
  ExpectPattern(bench);
  EXPECT_EQ(bench.scheduler->Devices()[0].memory.reserved_bytes, 0);
  EXPECT_EQ(bench.scheduler->Devices()[0].memory.high_water_bytes, 4 * 3328 + 1024) << "3200 and 1000, aligned";
  EXPECT_EQ(bench.engine.live_device_bytes(), 0) << "device memory is free before the outputs are sent";
}

TEST(FairSchedulerTest, RunsRequestsInTheOrderInWhichTheyBecameReady) {
  Bench bench;
  Sent first(bench, Forward(8));
  Sent second(bench, Forward(16));
  second.Ready();
  bench.engine.WaitForLaunches(1);
  first.Ready();
  bench.engine.Step(1);
  EXPECT_TRUE(second.listener->WaitUntilComputed().ok());
  EXPECT_FALSE(first.listener->computed());
  bench.engine.Step(1);
  EXPECT_TRUE(first.listener->WaitUntilComputed().ok());
}

TEST(FairSchedulerTest, ExpiredRequestNeverLaunches) {
  Bench bench;
  Sent running(bench, Forward(8));
  Sent expiring(bench, Forward(8), bench.clock.Now() + seconds(1));
  running.Ready();
  bench.engine.WaitForLaunches(1);
  expiring.Ready();
  bench.clock.Step(seconds(1));
  bench.engine.LetGo();
  const absl::Status status = expiring.listener->WaitUntilComputed();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(ReasonOf(status), "DEADLINE");
  EXPECT_TRUE(running.listener->WaitUntilComputed().ok());
  EXPECT_EQ(bench.engine.launches(), 1);
}

TEST(FairSchedulerTest, DeadlineActsBetweenSlices) {
  Bench bench({.slices = 5});
  Sent sent(bench, Forward(8), bench.clock.Now() + seconds(1));
  sent.Ready();
  bench.engine.Step(1);
  bench.engine.WaitForLaunches(2);
  bench.clock.Step(seconds(2));
  bench.engine.Step(1);
  EXPECT_EQ(sent.listener->WaitUntilComputed().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(bench.engine.launches(), 2);
  EXPECT_EQ(bench.pool.Use().reserved_bytes, 0);
}

TEST(FairSchedulerTest, CancelledRequestFreesItsMemoryAfterTheSliceThatRuns) {
  Bench bench({.slices = 100});
  Sent sent(bench, Forward(64));
  sent.Ready();
  bench.engine.WaitForLaunches(1);
  sent.Release();
  EXPECT_GT(bench.pool.Use().reserved_bytes, 0) << "the device still works on it";
  bench.engine.Step(1);
  bench.WaitUntilAllIsFree();
  EXPECT_EQ(bench.engine.launches(), 1);
  EXPECT_FALSE(sent.listener->computed()) << "who released it hears no more of it";
}

TEST(FairSchedulerTest, CancelledRequestThatWaitsForTheDeviceNeverLaunches) {
  Bench bench;
  Sent running(bench, Forward(8));
  running.Ready();
  bench.engine.WaitForLaunches(1);
  Sent cancelled(bench, Forward(8));
  cancelled.Ready();
  const int64_t before = bench.pool.Use().reserved_bytes;
  cancelled.Release();
  EXPECT_LT(bench.pool.Use().reserved_bytes, before);
  bench.engine.LetGo();
  EXPECT_TRUE(running.listener->WaitUntilComputed().ok());
  EXPECT_EQ(bench.engine.launches(), 1);
}

TEST(FairSchedulerTest, WhatWaitsToBeSentHoldsOnlyItsOutputs) {
  Bench bench({.workspace_bytes = 100000});
  Sent sent(bench, Forward(1000));
  sent.Ready();
  bench.engine.Step(1);
  ASSERT_TRUE(sent.listener->WaitUntilComputed().ok());
  EXPECT_EQ(bench.pool.Use().reserved_bytes, HostMemoryPool::BlockBytes(1000 * 8 * 4) + kMessageBytes);
}

TEST(FairSchedulerTest, FullQueueIsRefusedWithADelayAndOpensAgain) {
  Bench bench({}, 2);
  Sent first(bench, Forward(8));
  Sent second(bench, Forward(8));
  const absl::Status refusal = Sent(bench, Forward(8)).refusal();
  EXPECT_EQ(refusal.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(refusal), "QUEUE_FULL");
  EXPECT_GT(RetryDelayOf(refusal).value_or(Duration(0)), Duration(0));
  first.Ready();
  bench.engine.WaitForLaunches(1);  // it runs, so it waits no longer
  EXPECT_TRUE(Sent(bench, Forward(8)).refusal().ok());
}

TEST(FairSchedulerTest, RefusedRequestsLeaveNothingBehind) {
  Bench bench({}, 1);
  Sent only(bench, Forward(8));
  const int64_t reserved = bench.pool.Use().reserved_bytes;
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(Sent(bench, Forward(8)).refusal().ok());
  EXPECT_EQ(bench.pool.Use().reserved_bytes, reserved);
  EXPECT_EQ(bench.In(RequestState::kReceiving), 1);
}

TEST(FairSchedulerTest, WhatNeverFitsIsRefusedAtOnceWithBothNumbers) {
  Bench bench;
  const absl::Status refusal = Sent(bench, Forward(100000)).refusal();
  EXPECT_EQ(refusal.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(refusal), "TOO_LARGE");
  EXPECT_FALSE(RetryDelayOf(refusal).has_value());
  EXPECT_NE(refusal.message().find("9600000"), std::string::npos) << refusal;  // 3 inputs of 100000 x 8 x 4 bytes
  EXPECT_NE(refusal.message().find("1048576"), std::string::npos) << refusal;
}

TEST(FairSchedulerTest, WorkspaceCountsTowardsTheLimit) {
  Bench bench({.workspace_bytes = kHostLimit});
  EXPECT_EQ(ReasonOf(Sent(bench, Forward(8)).refusal()), "TOO_LARGE");
}

TEST(FairSchedulerTest, WhatTheDeviceNeverHoldsIsRefusedAtOnce) {
  Bench bench({.unified_memory = false, .device_memory_bytes = 1000});
  const absl::Status refusal = Sent(bench, Forward(8)).refusal();
  EXPECT_EQ(ReasonOf(refusal), "TOO_LARGE");
  EXPECT_NE(refusal.message().find("has 1000"), std::string::npos) << refusal;
}

TEST(FairSchedulerTest, WhatTheEngineDoesNotServeIsUnsupported) {
  Bench bench;
  const absl::Status refusal = Sent(bench, Forward(8, DType::kFloat64)).refusal();
  EXPECT_EQ(refusal.code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(ReasonOf(refusal), "UNSUPPORTED_PROBLEM");
}

TEST(FairSchedulerTest, PlanThatCanNeverBeMadeIsTooLarge) {
  Bench bench;
  for (const absl::Status& failure :
       {absl::ResourceExhaustedError("2^31 blocks"), absl::FailedPreconditionError("2^31 blocks")}) {
    bench.engine.FailPlans(failure);
    const absl::Status refusal = Sent(bench, Forward(8)).refusal();
    EXPECT_EQ(refusal.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(ReasonOf(refusal), "TOO_LARGE");
    EXPECT_NE(refusal.message().find("2^31 blocks"), std::string::npos) << refusal;
    EXPECT_FALSE(RetryDelayOf(refusal).has_value());
  }
}

TEST(FairSchedulerTest, DeadlineThatTheEstimateCannotMeetIsRefusedOnTheSpec) {
  Bench bench({.flops_per_second = Forward(64).flops()});  // a second each
  const absl::Status refusal = Sent(bench, Forward(64), bench.clock.Now() + milliseconds(400)).refusal();
  EXPECT_EQ(refusal.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(ReasonOf(refusal), "DEADLINE");
  EXPECT_TRUE(Sent(bench, Forward(64), bench.clock.Now() + milliseconds(1100)).refusal().ok());
}

TEST(FairSchedulerTest, WhatIsAheadCountsTowardsTheEstimate) {
  Bench bench({.flops_per_second = Forward(64).flops()});
  Sent running(bench, Forward(64));
  Sent ready(bench, Forward(64));
  running.Ready();
  bench.engine.WaitForLaunches(1);
  ready.Ready();
  EXPECT_EQ(bench.scheduler->Ahead().requests, 2);
  EXPECT_EQ(bench.scheduler->Ahead().wait, seconds(2));
  EXPECT_FALSE(Sent(bench, Forward(64), bench.clock.Now() + milliseconds(1400)).refusal().ok());
  EXPECT_TRUE(Sent(bench, Forward(64), bench.clock.Now() + milliseconds(1600)).refusal().ok());
}

TEST(FairSchedulerTest, EstimatesLearnFromWhatRan) {
  Bench bench({.flops_per_second = 1e15});
  Sent slow(bench, Forward(64));
  slow.Ready();
  bench.engine.WaitForLaunches(1);
  bench.clock.Step(milliseconds(900));
  bench.engine.Step(1);
  ASSERT_TRUE(slow.listener->WaitUntilComputed().ok());
  EXPECT_EQ(ReasonOf(Sent(bench, Forward(64), bench.clock.Now() + milliseconds(400)).refusal()), "DEADLINE");
}

TEST(FairSchedulerTest, TimingsSayWhereTheTimeWent) {
  Bench bench({.slices = 2});
  Sent blocker(bench, Forward(8));
  blocker.Ready();
  bench.engine.WaitForLaunches(1);
  Sent sent(bench, Forward(8));
  bench.clock.Step(seconds(1));
  sent.Ready();
  bench.clock.Step(seconds(2));
  bench.engine.Step(2);
  bench.engine.WaitForLaunches(3);
  bench.clock.Step(seconds(4));
  bench.engine.Step(2);
  ASSERT_TRUE(sent.listener->WaitUntilComputed().ok());
  EXPECT_EQ(sent.request().timings().receive, seconds(1));
  EXPECT_EQ(sent.request().timings().queue, seconds(2));
  EXPECT_EQ(sent.request().timings().compute, seconds(4));
}

TEST(FairSchedulerTest, ProgressGrowsWithEverySlice) {
  Bench bench({.slices = 4});
  Sent sent(bench, Forward(64));
  sent.Ready();
  bench.engine.Step(4);
  ASSERT_TRUE(sent.listener->WaitUntilComputed().ok());
  const double flops = sent.request().computation().flops();
  EXPECT_EQ(sent.listener->progress(), (std::vector<double>{flops / 4, flops / 2, flops * 3 / 4}));
}

TEST(FairSchedulerTest, DrainingRefusesNewRequestsAndFinishesOld) {
  Bench bench;
  Sent old(bench, Forward(8));
  bench.scheduler->Drain();
  const absl::Status refusal = Sent(bench, Forward(8)).refusal();
  EXPECT_EQ(refusal.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(refusal), "DRAINING");
  EXPECT_TRUE(RetryDelayOf(refusal).has_value());
  bench.engine.LetGo();
  old.Ready();
  EXPECT_TRUE(old.listener->WaitUntilComputed().ok());
}

TEST(FairSchedulerTest, FailedDeviceFailsWhatRanWaitsAndComes) {
  Bench bench;
  Sent running(bench, Forward(8));
  Sent ready(bench, Forward(8));
  running.Ready();
  ready.Ready();
  bench.engine.Fail(absl::InternalError("unspecified launch failure"));
  bench.engine.LetGo();
  for (const Sent* sent : {&running, &ready}) {
    const absl::Status status = sent->listener->WaitUntilComputed();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(ReasonOf(status), "DEVICE_LOST");
    EXPECT_TRUE(RetryDelayOf(status).has_value());
  }
  EXPECT_EQ(ReasonOf(Sent(bench, Forward(8)).refusal()), "DEVICE_LOST");
  EXPECT_EQ(bench.devices_lost, 1);
  EXPECT_EQ(bench.pool.Use().reserved_bytes, 0);
}

TEST(FairSchedulerTest, MachineWithoutHostMemoryFailsTheRequestAlone) {
  Bench bench;
  bench.engine.LimitHostBytes(1000);
  EXPECT_EQ(Sent(bench, Forward(8)).refusal().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(bench.pool.Use().reserved_bytes, 0);
  bench.engine.LimitHostBytes(kHostLimit);
  EXPECT_TRUE(Sent(bench, Forward(8)).refusal().ok());
}

TEST(FairSchedulerTest, ShortRequestOfAnotherTenantPassesALongOne) {
  Bench bench({.slices = 50});
  Sent lengthy(bench, Forward(64), kNoDeadline, Tenant::Create({.name = "lengthy"}));
  lengthy.Ready();
  bench.engine.Step(20);
  bench.engine.WaitForLaunches(21);
  Sent quick(bench, Forward(8), kNoDeadline, Tenant::Create({.name = "quick"}));
  quick.Ready();
  // Its slices and those of the other tenant alternate.
  bench.engine.Step(102);
  EXPECT_TRUE(quick.listener->WaitUntilComputed().ok());
  EXPECT_TRUE(lengthy.listener->WaitUntilComputed().ok());
}

TEST(FairSchedulerTest, TenantsShareTheDeviceByTheirWeights) {
  Bench bench({.slices = 1000});
  Sent heavy(bench, Forward(64), kNoDeadline, Tenant::Create({.name = "heavy", .weight = 3}));
  Sent light(bench, Forward(64), kNoDeadline, Tenant::Create({.name = "light", .weight = 1}));
  bench.engine.OnSlice([&] { bench.clock.Step(milliseconds(10)); });
  heavy.Ready();
  light.Ready();
  bench.engine.Step(400);
  bench.engine.WaitForLaunches(401);
  EXPECT_NEAR(static_cast<double>(heavy.listener->progress().size()), 300, 4);
  EXPECT_NEAR(static_cast<double>(light.listener->progress().size()), 100, 4);
  heavy.Release();
  light.Release();
}

TEST(FairSchedulerTest, QuotaIsHeldFromTheSpecUntilTheRelease) {
  Bench bench;
  const auto tenant = Tenant::Create({.name = "small", .max_in_flight = 1});
  {
    Sent first(bench, Forward(8), kNoDeadline, tenant);
    EXPECT_EQ(tenant->GetUse().in_flight, 1);
    EXPECT_GT(tenant->GetUse().bytes, 0);
    EXPECT_EQ(ReasonOf(Sent(bench, Forward(8), kNoDeadline, tenant).refusal()), "QUOTA");
    EXPECT_TRUE(Sent(bench, Forward(8)).refusal().ok()) << "others are not concerned";
  }
  EXPECT_EQ(tenant->GetUse().in_flight, 0);
  EXPECT_EQ(tenant->GetUse().bytes, 0);
}

TEST(FairSchedulerTest, RefusedRequestsHoldNoQuota) {
  Bench bench({}, 1);
  const auto tenant = Tenant::Create({.max_bytes = 1 << 20});
  Sent only(bench, Forward(8));
  EXPECT_EQ(ReasonOf(Sent(bench, Forward(8), kNoDeadline, tenant).refusal()), "QUEUE_FULL");
  EXPECT_EQ(tenant->GetUse().bytes, 0);
}

TEST(FairSchedulerTest, InputsThatAreStoredNeedNoMemoryAndAreRead) {
  Bench bench({.unified_memory = false});
  const Computation computation = Forward(100);
  Reservation reservation = *bench.pool.TryReserve(3 * HostMemoryPool::BlockBytes(3200));
  Submission submission{"id", computation, kNoDeadline, std::make_shared<RecordingListener>(), nullptr};
  TensorPointers inputs;
  computation.inputs().ForEach([&](TensorName name) {
    HostBuffer buffer = *bench.pool.Allocate(reservation, 3200);
    std::memset(buffer.data(), 40 + static_cast<int>(name), 3200);
    inputs.Set(name, buffer.data());
    submission.stored[static_cast<size_t>(name)] = std::make_shared<const HostBuffer>(std::move(buffer));
  });
  const int64_t before = bench.pool.Use().reserved_bytes;
  const auto listener = std::make_shared<RecordingListener>();
  submission.listener = listener;
  const std::vector<std::byte> expected = PatternOf(computation, inputs, TensorName::kO);
  const Submitted submitted = *bench.scheduler->Submit(submission);
  if (!submitted.admitted) listener->WaitUntilAdmitted();
  EXPECT_EQ(bench.pool.Use().reserved_bytes - before, HostMemoryPool::BlockBytes(3200) + 3200) << "output and transit";
  bench.engine.LetGo();
  bench.scheduler->Ready(submitted.request);
  ASSERT_TRUE(listener->WaitUntilComputed().ok());
  EXPECT_EQ(std::memcmp(submitted.request->HostData(TensorName::kO), expected.data(), expected.size()), 0);
  submission.stored = {};
  auto [output, hold] = submitted.request->TakeOutput(TensorName::kO);
  bench.scheduler->Release(submitted.request);
  EXPECT_EQ(bench.pool.Use().reserved_bytes, HostMemoryPool::BlockBytes(3200)) << "the output is kept";
  EXPECT_EQ(std::memcmp(output.data(), expected.data(), expected.size()), 0);
}

TEST(FairSchedulerTest, OnlyCachedHostMemoryIsAllocatedOnTheCallersThreadWhereItMustBePageLocked) {
  Bench bench({.unified_memory = false});
  {
    Sent first(bench, Forward(100));
    ASSERT_TRUE(first.submitted.ok());
    EXPECT_FALSE(first.submitted->admitted);
    first.WaitUntilAdmitted();
  }
  bench.WaitUntilAllIsFree();
  Sent again(bench, Forward(100));
  ASSERT_TRUE(again.submitted.ok());
  EXPECT_TRUE(again.submitted->admitted) << "all its blocks lay in the cache";
  Sent beside(bench, Forward(100));
  ASSERT_TRUE(beside.submitted.ok());
  EXPECT_FALSE(beside.submitted->admitted) << "those are in use now";
  beside.WaitUntilAdmitted();
}

TEST(FairSchedulerTest, NextRequestIsCopiedInWhileOneComputes) {
  Bench bench({.slices = 2, .unified_memory = false});
  Sent first(bench, Forward(8));
  first.WaitUntilAdmitted();
  first.Ready();
  bench.engine.WaitForLaunches(1);
  const int64_t alone = bench.scheduler->Devices()[0].memory.reserved_bytes;
  Sent second(bench, Forward(8));
  second.WaitUntilAdmitted();
  second.Ready();
  bench.engine.Step(1);
  bench.engine.WaitForLaunches(2);
  EXPECT_EQ(bench.scheduler->Devices()[0].memory.reserved_bytes, 2 * alone);
  bench.engine.Step(3);
  EXPECT_TRUE(first.listener->WaitUntilComputed().ok());
  EXPECT_TRUE(second.listener->WaitUntilComputed().ok());
}

TEST(FairSchedulerTest, DeviceMemoryBoundsWhatIsOnTheDevice) {
  const int64_t each = 4 * 3328;  // 3200 bytes, aligned
  Bench bench({.slices = 3, .unified_memory = false, .device_memory_bytes = each * 3 / 2});
  std::vector<std::unique_ptr<Sent>> all;
  for (int i = 0; i < 20; ++i) {
    all.push_back(std::make_unique<Sent>(bench, Forward(100)));
    all.back()->WaitUntilAdmitted();
    all.back()->Ready();
  }
  bench.engine.LetGo();
  for (const auto& sent : all) EXPECT_TRUE(sent->listener->WaitUntilComputed().ok());
  EXPECT_EQ(bench.scheduler->Devices()[0].memory.high_water_bytes, each);
  EXPECT_EQ(bench.scheduler->Devices()[0].memory.reserved_bytes, 0);
}

TEST(FairSchedulerTest, TwoDevicesTakeARequestEach) {
  Bench bench({}, 100, true);
  Sent one(bench, Forward(8));
  Sent other(bench, Forward(8));
  one.Ready();
  other.Ready();
  bench.engine.WaitForLaunches(1);
  bench.second.WaitForLaunches(1);
  bench.engine.LetGo();
  bench.second.LetGo();
  EXPECT_TRUE(one.listener->WaitUntilComputed().ok());
  EXPECT_TRUE(other.listener->WaitUntilComputed().ok());
}

TEST(FairSchedulerTest, LostDeviceIsFoundWhereverItShowsFirst) {
  const absl::Status lost = absl::UnavailableError("an illegal memory access");
  for (const auto& [host_memory_can_be_had, inline_copy_bytes] : {std::pair(false, 0), {true, 0}, {true, 1 << 20}}) {
    Bench bench({.unified_memory = false}, 100, false, inline_copy_bytes);
    bench.engine.Lose(lost, host_memory_can_be_had);
    Sent sent(bench, Forward(8));
    ASSERT_TRUE(sent.submitted.ok());
    if (host_memory_can_be_had) {
      sent.WaitUntilAdmitted();
      sent.Ready();
    }
    const absl::Status status = sent.listener->WaitUntilComputed();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_EQ(ReasonOf(status), "DEVICE_LOST") << status;
    EXPECT_EQ(bench.devices_lost, 1);
    EXPECT_EQ(ReasonOf(Sent(bench, Forward(8)).refusal()), "DEVICE_LOST");
  }
}

TEST(FairSchedulerTest, OtherDeviceGoesOnWhereOneIsLost) {
  Bench bench({}, 100, true);
  Sent one(bench, Forward(8));
  Sent other(bench, Forward(8));
  one.Ready();
  other.Ready();
  bench.engine.WaitForLaunches(1);
  bench.second.WaitForLaunches(1);
  bench.engine.Fail(absl::InternalError("unspecified launch failure"));
  bench.engine.LetGo();
  bench.second.LetGo();
  const std::vector<absl::Status> ends = {one.listener->WaitUntilComputed(), other.listener->WaitUntilComputed()};
  EXPECT_EQ(ends[0].ok() + ends[1].ok(), 1);
  EXPECT_EQ(ReasonOf(ends[0].ok() ? ends[1] : ends[0]), "DEVICE_LOST");
  EXPECT_EQ(bench.devices_lost, 1);
  for (int i = 0; i < 10; ++i) {
    Sent later(bench, Forward(8));
    later.Ready();
    EXPECT_TRUE(later.listener->WaitUntilComputed().ok());
  }
}

void LeakNothing(SteppedEngine::Options engine_options, bool two_devices, int64_t inline_copy_bytes = 0) {
  const uint64_t seed = testing_seed::Seed();
  Bench bench(engine_options, 6, two_devices, inline_copy_bytes);
  const auto tenant = Tenant::Create({.name = "t", .max_in_flight = 3});
  bench.engine.LetGo();
  bench.second.LetGo();
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(seed + t);
      for (int i = 0; i < 60; ++i) {
        Sent sent(bench, Forward(static_cast<int64_t>(random() % 4000)), kNoDeadline, t % 2 == 0 ? tenant : nullptr);
        if (!sent.submitted.ok()) continue;
        if (!sent.submitted->admitted) {
          if (random() % 2 == 0) continue;
          sent.listener->WaitUntilAdmitted();
        }
        if (random() % 4 == 0) continue;
        sent.Ready();
        if (random() % 3 == 0) continue;
        EXPECT_TRUE(sent.listener->WaitUntilComputed().ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  bench.WaitUntilAllIsFree();
  for (int64_t count : bench.scheduler->CountByState()) EXPECT_EQ(count, 0);
  EXPECT_EQ(tenant->GetUse().bytes, 0);
  EXPECT_EQ(tenant->GetUse().in_flight, 0);
  for (const DeviceUse& device : bench.scheduler->Devices()) EXPECT_EQ(device.memory.reserved_bytes, 0);
}

TEST(FairSchedulerTest, NothingLeaksUnderRandomSubmissionsAndCancellations) {
  LeakNothing({.slices = 3, .workspace_bytes = 5000}, false);
}

TEST(FairSchedulerTest, NothingLeaksWhereDevicesHaveMemoryOfTheirOwn) {
  LeakNothing({.slices = 3, .unified_memory = false, .workspace_bytes = 5000, .device_memory_bytes = 600000}, true);
}

TEST(FairSchedulerTest, NothingLeaksWhereSomeRequestsAreSmallEnoughToBeCopiedInline) {
  LeakNothing({.slices = 3, .unified_memory = false, .workspace_bytes = 5000, .device_memory_bytes = 600000}, true,
              250000);
}

}  // namespace
}  // namespace flashbob::server
