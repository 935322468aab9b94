// With fewer of gRPC's callback threads: how many there are, how many are left, when all serve, and that the server
// needs but one.
#include "server/service/callback_threads.h"

#include <dirent.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <fstream>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/server/testing/step_clock.h"
#include "tests/server/testing/test_server.h"

namespace flashbob::server {
namespace {

// Calls `body` in so many callbacks of gRPC's and waits until all have returned.
void RunCallbacks(const std::shared_ptr<grpc::Channel>& channel, int count, const std::function<void()>& body) {
  struct Call {
    grpc::ClientContext context;
    const grpc::Slice nothing;
    grpc::ByteBuffer request{&nothing, 1};
    grpc::ByteBuffer response;
  };
  std::vector<Call> calls(static_cast<size_t>(count));
  std::mutex mutex;
  std::condition_variable changed;
  int left = count;
  grpc::GenericStub stub(channel);
  for (Call& call : calls) {
    stub.UnaryCall(&call.context, "/none/None", grpc::StubOptions(), &call.request, &call.response,
                   [&](const grpc::Status&) {
                     body();
                     const std::lock_guard<std::mutex> lock(mutex);
                     --left;
                     changed.notify_all();
                   });
  }
  std::unique_lock<std::mutex> lock(mutex);
  changed.wait(lock, [&] { return left == 0; });
}

// On which threads so many callbacks run that each wait until as many as `at_once` threads have begun one, and take
// long enough for another thread to begin the next, if there is one.
std::set<pid_t> ThreadsOf(const std::shared_ptr<grpc::Channel>& channel, int count, int at_once) {
  std::mutex mutex;
  std::condition_variable changed;
  std::set<pid_t> threads;
  RunCallbacks(channel, count, [&] {
    std::unique_lock<std::mutex> lock(mutex);
    threads.insert(gettid());
    changed.notify_all();
    changed.wait(lock, [&] { return static_cast<int>(threads.size()) >= at_once; });
    lock.unlock();
    const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(200);
    while (std::chrono::steady_clock::now() < until) std::this_thread::yield();
  });
  return threads;
}

// By the name that gRPC gives them.
int CallbackThreadsOfThisProcess() {
  int count = 0;
  DIR* tasks = opendir("/proc/self/task");
  while (const dirent* task = readdir(tasks)) {
    std::string name;
    std::getline(std::ifstream(std::string("/proc/self/task/") + task->d_name + "/comm"), name);
    count += name == "nexting_thread" ? 1 : 0;
  }
  closedir(tasks);
  return count;
}

class CallbackThreadsTest : public testing::Test {
 protected:
  // Every call fails at once. It keeps gRPC's threads from ending with the last server or channel of a test.
  const std::shared_ptr<grpc::Channel> channel_ = grpc::CreateChannel("none", nullptr);
};

TEST_F(CallbackThreadsTest, AsManyAreStartedAsExpected) {
  const int started = CallbackThreads::Started();
  EXPECT_EQ(ThreadsOf(channel_, started, started).size(), static_cast<size_t>(started));
  EXPECT_EQ(CallbackThreadsOfThisProcess(), started);
}

TEST_F(CallbackThreadsTest, JustAsManyServeAsTheLimitSaysAndAllAgainWithoutIt) {
  const int started = CallbackThreads::Started();
  for (int serving = 1; serving <= started; ++serving) {
    absl::StatusOr<std::unique_ptr<CallbackThreads>> threads = CallbackThreads::Limit(serving);
    ASSERT_TRUE(threads.ok()) << threads.status();
    EXPECT_EQ(ThreadsOf(channel_, 32 * started, serving).size(), static_cast<size_t>(serving));
  }
  EXPECT_EQ(ThreadsOf(channel_, started, started).size(), static_cast<size_t>(started));
}

TEST_F(CallbackThreadsTest, MoreThanThereAreLimitsNothing) {
  const int started = CallbackThreads::Started();
  const absl::StatusOr<std::unique_ptr<CallbackThreads>> threads = CallbackThreads::Limit(started + 1);
  ASSERT_TRUE(threads.ok()) << threads.status();
  EXPECT_EQ(ThreadsOf(channel_, started, started).size(), static_cast<size_t>(started));
}

TEST_F(CallbackThreadsTest, AllServeWhileTheFewAreBusyAndForASecondAfter) {
  const int started = CallbackThreads::Started();
  const auto serve = [&](int wanted) {
    return ThreadsOf(channel_, 32 * started, wanted).size() == static_cast<size_t>(wanted);
  };
  const absl::StatusOr<std::unique_ptr<CallbackThreads>> threads = CallbackThreads::Limit(1);
  ASSERT_TRUE(threads.ok()) << threads.status();
  const TimePoint begin = TimePoint() + std::chrono::hours(1);
  (*threads)->Adapt(0.84, false, begin);
  EXPECT_TRUE(serve(1));
  for (int round = 1; round <= 3; ++round) {
    const TimePoint busy = begin + std::chrono::minutes(round);
    (*threads)->Adapt(0.86, false, busy);
    EXPECT_TRUE(serve(started));
    (*threads)->Adapt(0.61, false, busy + std::chrono::milliseconds(500));  // enough to stay
    (*threads)->Adapt(0.59, false, busy + std::chrono::milliseconds(1499));
    EXPECT_TRUE(serve(started));
    (*threads)->Adapt(0.59, false, busy + std::chrono::milliseconds(1500));
    EXPECT_TRUE(serve(1));
    (*threads)->Adapt(0, false, busy + std::chrono::seconds(30));
    EXPECT_TRUE(serve(1));
  }
}

TEST_F(CallbackThreadsTest, BusyIsWhatTheyUsedOfTheTime) {
  const absl::StatusOr<std::unique_ptr<CallbackThreads>> threads = CallbackThreads::Limit(1);
  ASSERT_TRUE(threads.ok()) << threads.status();
  StepClock clock;
  EXPECT_EQ((*threads)->Busy(clock), 0);
  const auto used = [] {
    timespec time = {};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
  };
  RunCallbacks(channel_, 1, [&] {
    const auto end = used() + std::chrono::milliseconds(50);
    while (used() < end) std::this_thread::yield();
  });
  clock.Step(std::chrono::milliseconds(100));
  EXPECT_NEAR((*threads)->Busy(clock), 0.5, 0.1);
  clock.Step(std::chrono::milliseconds(100));
  EXPECT_LT((*threads)->Busy(clock), 0.1);
}

TEST_F(CallbackThreadsTest, CallbackThatFindsNoThreadIsLate) {
  const absl::StatusOr<std::unique_ptr<CallbackThreads>> threads = CallbackThreads::Limit(1);
  ASSERT_TRUE(threads.ok()) << threads.status();
  RunCallbacks(channel_, 1, [&] {  // on the one thread that serves
    EXPECT_FALSE((*threads)->Late());
    EXPECT_TRUE((*threads)->Late());
    EXPECT_TRUE((*threads)->Late());
  });
  while ((*threads)->Late()) std::this_thread::yield();
  const TimePoint now = TimePoint() + std::chrono::hours(1);
  (*threads)->Adapt(0, true, now);
  const int started = CallbackThreads::Started();
  EXPECT_EQ(ThreadsOf(channel_, started, started).size(), static_cast<size_t>(started));
}

// Callbacks that wait until every thread has begun one keep the one that serves from all else, and are done only where
// the rest are let serve.
TEST_F(CallbackThreadsTest, AServerLetsAllServeWhileThoseThatDoAreKeptFromIt) {
  const int started = CallbackThreads::Started();
  const absl::StatusOr<std::unique_ptr<CallbackThreads>> threads = CallbackThreads::Limit(1);
  ASSERT_TRUE(threads.ok()) << threads.status();
  TestServer server(**threads);
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(ThreadsOf(channel_, started, started).size(), static_cast<size_t>(started));
    // One again once they have had time for a second: of a few looks in a row none sees another.
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    int alone = 0;
    while (alone < 5 && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));  // looks themselves keep them busy
      alone = ThreadsOf(channel_, 32 * started, 1).size() == 1 ? alone + 1 : 0;
    }
    EXPECT_EQ(alone, 5);
  }
  EXPECT_TRUE(server.CleanAndServing());
}

TEST_F(CallbackThreadsTest, OneThreadIsEnoughForTheServer) {
  const absl::StatusOr<std::unique_ptr<CallbackThreads>> threads = CallbackThreads::Limit(1);
  ASSERT_TRUE(threads.ok()) << threads.status();
  TestServer server;
  EXPECT_TRUE(server.CleanAndServing());
}

}  // namespace
}  // namespace flashbob::server
