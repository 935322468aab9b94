// Short requests that an idle device computes on the thread that readies them.
#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "server/scheduler/fair_scheduler.h"
#include "tests/server/testing/scheduler_bench.h"

namespace flashbob::server {
namespace {

constexpr int64_t kCopiedInline = 1 << 20;
constexpr Duration kShort = std::chrono::milliseconds(1);

// Which threads ran slices.
class Threads {
 public:
  explicit Threads(SteppedEngine& engine) {
    engine.LetGo();
    engine.OnSlice([this] {
      MutexLock lock(mutex_);
      ran_.insert(std::this_thread::get_id());
    });
  }
  bool ThisOneRan() const {
    MutexLock lock(mutex_);
    return ran_.contains(std::this_thread::get_id());
  }

 private:
  mutable Mutex mutex_;
  std::set<std::thread::id> ran_ FLASHBOB_GUARDED_BY(mutex_);
};

TEST(WithinReadyTest, IdleDeviceComputesAShortRequestOnTheCallersThread) {
  Bench bench({.unified_memory = false}, 100, false, kCopiedInline, kShort);
  Threads threads(bench.engine);
  for (int i = 0; i < 3; ++i) {
    Sent sent(bench, Forward(64));
    sent.WaitUntilAdmitted();
    sent.Ready();
    EXPECT_TRUE(sent.listener->computed()) << "within Ready";
    EXPECT_TRUE(threads.ThisOneRan());
    EXPECT_EQ(bench.In(RequestState::kSending), 1);
  }
  EXPECT_EQ(bench.scheduler->Devices()[0].memory.reserved_bytes, 0);
}

// Whether the thread that readies such a request computes it.
bool IsComputedByItsCaller(SteppedEngine::Options engine, int64_t inline_copy_bytes) {
  Bench bench(engine, 100, false, inline_copy_bytes, kShort);
  Threads threads(bench.engine);
  Sent sent(bench, Forward(64));
  sent.WaitUntilAdmitted();
  sent.Ready();
  EXPECT_TRUE(sent.listener->WaitUntilComputed().ok());
  return threads.ThisOneRan();
}

TEST(WithinReadyTest, NothingLongerKeepsTheCallersThread) {
  EXPECT_TRUE(IsComputedByItsCaller({.unified_memory = false}, kCopiedInline));
  EXPECT_FALSE(IsComputedByItsCaller({.unified_memory = false}, 0)) << "its copies have threads of their own";
  EXPECT_FALSE(IsComputedByItsCaller({.slices = 2, .unified_memory = false}, kCopiedInline));
  EXPECT_FALSE(IsComputedByItsCaller({.unified_memory = false, .flops_per_second = 1e6}, kCopiedInline));
  EXPECT_FALSE(IsComputedByItsCaller({.unified_memory = true}, kCopiedInline)) << "a CPU's slice takes all its cores";
}

TEST(WithinReadyTest, RequestsThatComeMeanwhileAreTheDevicesOwnThreads) {
  Bench bench({.unified_memory = false}, 100, false, kCopiedInline, kShort);
  Sent first(bench, Forward(64));
  Sent second(bench, Forward(64));
  Sent third(bench, Forward(64));
  for (Sent* sent : {&first, &second, &third}) sent->WaitUntilAdmitted();
  std::thread caller([&] { first.Ready(); });
  bench.engine.WaitForLaunches(1);
  second.Ready();  // else these would wait for Step, which comes later
  third.Ready();
  EXPECT_FALSE(second.listener->computed());
  EXPECT_EQ(bench.engine.launches(), 1) << "the device does one thing at a time";
  bench.engine.Step(3);
  caller.join();
  EXPECT_TRUE(first.listener->computed());
  EXPECT_TRUE(second.listener->WaitUntilComputed().ok());
  EXPECT_TRUE(third.listener->WaitUntilComputed().ok());
}

TEST(WithinReadyTest, FreeDeviceTakesTheNextWhileAnotherIsLent) {
  Bench bench({.unified_memory = false}, 100, true, kCopiedInline, kShort);
  Sent first(bench, Forward(64));
  Sent second(bench, Forward(64));
  for (Sent* sent : {&first, &second}) sent->WaitUntilAdmitted();
  std::thread caller([&] { first.Ready(); });
  bench.engine.WaitForLaunches(1);
  bench.second.LetGo();
  second.Ready();
  EXPECT_TRUE(second.listener->computed()) << "within Ready, by the second device";
  EXPECT_FALSE(first.listener->computed());
  bench.engine.LetGo();
  caller.join();
}

TEST(WithinReadyTest, ReleaseWhileItIsComputedFreesItsMemory) {
  Bench bench({.unified_memory = false}, 100, false, kCopiedInline, kShort);
  Sent sent(bench, Forward(64));
  sent.WaitUntilAdmitted();
  std::thread caller([&] { sent.Ready(); });
  bench.engine.WaitForLaunches(1);
  sent.Release();
  bench.engine.LetGo();
  caller.join();
  bench.WaitUntilAllIsFree();
  EXPECT_FALSE(sent.listener->computed()) << "who released it hears no more of it";
  EXPECT_EQ(bench.engine.live_device_bytes(), 0);
}

TEST(WithinReadyTest, FailureOfALentDeviceIsItsLoss) {
  Bench bench({.unified_memory = false}, 100, false, kCopiedInline, kShort);
  Sent sent(bench, Forward(64));
  sent.WaitUntilAdmitted();
  bench.engine.LetGo();
  bench.engine.Lose(absl::InternalError("it burns"), true);
  sent.Ready();
  ASSERT_TRUE(sent.listener->computed());
  EXPECT_EQ(sent.listener->WaitUntilComputed().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(bench.devices_lost, 1);
}

}  // namespace
}  // namespace flashbob::server
