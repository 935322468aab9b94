#include "kernels/cpu/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <thread>
#include <vector>

namespace flashbob::cpu {
namespace {

TEST(ThreadPoolTest, EveryTaskRunsOnceForAnyNumberOfThreadsAndTasks) {
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (int64_t tasks : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<size_t>(tasks));
      pool.Run(tasks, threads, [&](int64_t task, int) { ++runs[static_cast<size_t>(task)]; });
      for (const std::atomic<int>& each : runs) EXPECT_EQ(each.load(), 1);
    }
  }
}

TEST(ThreadPoolTest, ThreadNumbersStayBelowTheLimitAndAreNotShared) {
  ThreadPool pool(6);
  for (int limit : {1, 2, 4, 9}) {
    std::vector<std::atomic<int>> busy(9);
    for (int round = 0; round < 50; ++round) {
      pool.Run(64, limit, [&](int64_t, int thread) {
        ASSERT_GE(thread, 0);
        ASSERT_LT(thread, limit);
        EXPECT_EQ(busy[static_cast<size_t>(thread)].fetch_add(1), 0);
        busy[static_cast<size_t>(thread)].fetch_sub(1);
      });
    }
  }
}

TEST(ThreadPoolTest, TaskMayWaitForTheOneBefore) {
  ThreadPool pool(4);
  for (int round = 0; round < 20; ++round) {
    std::atomic<int64_t> done = 0;
    pool.Run(200, 4, [&](int64_t task, int) {
      while (done.load() != task) std::this_thread::yield();
      done.store(task + 1);
    });
    EXPECT_EQ(done.load(), 200);
  }
}

TEST(ThreadPoolTest, CallsFromSeveralThreadsTakeTurns) {
  ThreadPool pool(3);
  constexpr int kCallers = 4;
  std::atomic<int> active[kCallers] = {};  // tasks of each caller that are running
  std::atomic<int64_t> sum = 0;
  std::vector<std::thread> callers;
  for (int caller = 0; caller < kCallers; ++caller) {
    callers.emplace_back([&, caller] {
      for (int round = 0; round < 50; ++round) {
        pool.Run(10, 3, [&](int64_t task, int) {
          ++active[caller];
          for (int other = 0; other < kCallers; ++other) EXPECT_TRUE(other == caller || active[other] == 0);
          sum += task;
          --active[caller];
        });
      }
    });
  }
  for (std::thread& each : callers) each.join();
  EXPECT_EQ(sum.load(), kCallers * 50 * 45);
}

}  // namespace
}  // namespace flashbob::cpu
