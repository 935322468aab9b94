#include "client/cli/load.h"

#include <gtest/gtest.h>

#include <atomic>
#include <set>

#include "kernels/base/mutex.h"

namespace flashbob::cli {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

void Ignore(double) {}

TEST(LoadTest, AllThreadsCallAtOnce) {
  // Nobody returns from the first call before all have come.
  constexpr int kThreads = 4;
  Mutex mutex;
  CondVar changed;
  std::set<int> arrived;
  const absl::StatusOr<LoadResult> load = RunLoad(
      kThreads, milliseconds(1),
      [&](int thread) -> absl::StatusOr<Outcome> {
        const MutexLock lock(mutex);
        arrived.insert(thread);
        changed.NotifyAll();
        while (arrived.size() < kThreads) changed.Wait(mutex);
        return Outcome{.queue = nanoseconds(3), .compute = nanoseconds(5)};
      },
      Ignore);
  ASSERT_TRUE(load.ok()) << load.status();
  EXPECT_GE(load->samples.size(), 4u);
  for (const Sample& sample : load->samples) {
    EXPECT_EQ(sample.queue, nanoseconds(3));
    EXPECT_EQ(sample.compute, nanoseconds(5));
  }
}

TEST(LoadTest, FirstCallsAreNotCountedAndOneIsThatEndsLate) {
  std::atomic<int> calls = 0;
  const absl::StatusOr<LoadResult> load = RunLoad(
      1, nanoseconds(1),
      [&](int) -> absl::StatusOr<Outcome> {
        ++calls;
        return Outcome{};
      },
      Ignore);
  ASSERT_TRUE(load.ok()) << load.status();
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(load->samples.size(), 1u);
  EXPECT_GE(load->elapsed, load->samples.front().latency);
}

TEST(LoadTest, AnErrorEndsAllThreads) {
  std::atomic<int> calls = 0;
  const absl::StatusOr<LoadResult> load = RunLoad(
      3, std::chrono::hours(1),
      [&](int) -> absl::StatusOr<Outcome> {
        if (++calls == 10) return absl::UnavailableError("gone");
        return Outcome{};
      },
      Ignore);
  EXPECT_EQ(load.status(), absl::UnavailableError("gone"));
}

TEST(LoadTest, AnErrorOfAFirstCallEndsAllThreads) {
  const absl::StatusOr<LoadResult> load = RunLoad(
      3, std::chrono::hours(1),
      [](int thread) -> absl::StatusOr<Outcome> {
        if (thread == 1) return absl::InternalError("broken");
        return Outcome{};
      },
      Ignore);
  EXPECT_EQ(load.status(), absl::InternalError("broken"));
}

TEST(PercentileTest, IsTheNearestRank) {
  std::vector<Sample> samples;
  for (int i : {5, 3, 1, 4, 2, 10, 9, 8, 7, 6}) samples.push_back({.latency = nanoseconds(i)});
  EXPECT_EQ(Percentile(samples, 0), nanoseconds(1));
  EXPECT_EQ(Percentile(samples, 0.5), nanoseconds(5));
  EXPECT_EQ(Percentile(samples, 0.9), nanoseconds(9));
  EXPECT_EQ(Percentile(samples, 0.99), nanoseconds(10));
  EXPECT_EQ(Percentile(samples, 1), nanoseconds(10));
  EXPECT_EQ(Percentile({samples.front()}, 0.5), nanoseconds(5));
}

}  // namespace
}  // namespace flashbob::cli
