// FairQueue step by step; fair_queue_simulation_test.cc tells the long story.
#include "server/scheduler/fair_queue.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

namespace flashbob::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Ticket = FairQueue::Ticket;

// A queue for one device whose memory never lacks and whose copies take no time.
struct Bench {
  explicit Bench(FairQueue::Options options = {}) : queue(1, options) {}

  Ticket Send(const std::string& tenant, Duration estimate, double weight = 1, int priority = 0) {
    FairQueue::Job job;
    job.tenant = tenant;
    job.weight = weight;
    job.priority = priority;
    job.estimate = estimate;
    const Ticket ticket = next_ticket++;
    queue.Enqueue(ticket, job, now);
    left[ticket] = estimate;
    tenant_of[ticket] = tenant;
    return ticket;
  }

  void PlaceAll() {
    for (std::vector<Ticket> candidates = queue.Candidates(0, now); !candidates.empty();
         candidates = queue.Candidates(0, now)) {
      queue.Place(candidates.front(), 0, now);
      queue.MakeRunnable(candidates.front());
    }
  }

  // Runs one slice of 20 ms at most; whose it was.
  std::optional<Ticket> Step() {
    PlaceAll();
    const std::optional<Ticket> ticket = queue.Next(0, now);
    if (!ticket.has_value()) return ticket;
    const Duration slice = std::min<Duration>(left[*ticket], milliseconds(20));
    queue.Begin(*ticket, slice);
    now += slice;
    queue.End(*ticket, slice, now);
    served[tenant_of[*ticket]] += slice;
    left[*ticket] -= slice;
    if (left[*ticket] == Duration(0)) queue.Remove(*ticket);
    return ticket;
  }

  FairQueue queue;
  TimePoint now = TimePoint(std::chrono::hours(1));
  Ticket next_ticket = 1;
  std::map<Ticket, Duration> left;
  std::map<Ticket, std::string> tenant_of;
  std::map<std::string, Duration> served;
};

TEST(FairQueueTest, EmptyQueueHasNothingToRun) {
  Bench bench;
  EXPECT_FALSE(bench.Step().has_value());
  EXPECT_TRUE(bench.queue.Candidates(0, bench.now).empty());
}

TEST(FairQueueTest, DeviceTimeIsSharedByWeight) {
  Bench bench;
  bench.Send("three", seconds(30), 3);
  bench.Send("one", seconds(30), 1);
  for (int i = 0; i < 400; ++i) bench.Step();
  EXPECT_NEAR(ToSeconds(bench.served["three"]), 6, 0.021);
  EXPECT_NEAR(ToSeconds(bench.served["one"]), 2, 0.021);
}

TEST(FairQueueTest, ShortRequestDoesNotWaitBehindALongOne) {
  Bench bench;
  bench.Send("busy", seconds(30));
  for (int i = 0; i < 10; ++i) bench.Step();
  const Ticket quick = bench.Send("quick", milliseconds(1));
  EXPECT_EQ(bench.Step(), quick);
}

TEST(FairQueueTest, IdleTenantGathersNoCredit) {
  Bench bench;
  bench.Send("late", milliseconds(20));
  bench.Send("busy", seconds(100));
  for (int i = 0; i < 500; ++i) bench.Step();
  bench.served.clear();
  bench.Send("late", seconds(100));
  for (int i = 0; i < 100; ++i) bench.Step();
  EXPECT_NEAR(ToSeconds(bench.served["late"]), 1, 0.021);
}

TEST(FairQueueTest, WhoUsedAnIdleDeviceOwesNothing) {
  Bench bench;
  bench.Send("early", seconds(100));
  for (int i = 0; i < 500; ++i) bench.Step();
  bench.served.clear();
  bench.Send("newcomer", seconds(100));
  for (int i = 0; i < 100; ++i) bench.Step();
  EXPECT_NEAR(ToSeconds(bench.served["early"]), 1, 0.041);
}

TEST(FairQueueTest, RequestsOfOneTenantTakeTurns) {
  Bench bench;
  const Ticket a = bench.Send("t", seconds(1));
  const Ticket b = bench.Send("t", seconds(1));
  std::map<Ticket, int> slices;
  for (int i = 0; i < 20; ++i) ++slices[*bench.Step()];
  EXPECT_NEAR(slices[a], slices[b], 1);
}

TEST(FairQueueTest, RequestThatIsNearlyDoneEndsBeforeALongOneBeginsAndLetsOthersPass) {
  struct Newcomer {
    Duration estimate;
    int priority;
    bool passes;
  };
  for (const Newcomer& newcomer : {Newcomer{milliseconds(50), 0, false}, Newcomer{milliseconds(1), 0, true},
                                   Newcomer{milliseconds(50), 1, true}}) {
    Bench bench;
    const Ticket a = bench.Send("t", milliseconds(80));
    EXPECT_EQ(bench.Step(), a);
    EXPECT_EQ(bench.Step(), a);
    const Ticket b = bench.Send("t", newcomer.estimate, 1, newcomer.priority);
    EXPECT_EQ(bench.Step(), newcomer.passes ? b : a);
  }
}

TEST(FairQueueTest, HigherPriorityRunsFirstInsideATenant) {
  Bench bench;
  const Ticket low = bench.Send("t", milliseconds(20), 1, 0);
  const Ticket high = bench.Send("t", milliseconds(20), 1, 5);
  EXPECT_EQ(bench.Step(), high);
  EXPECT_EQ(bench.Step(), low);
}

TEST(FairQueueTest, WaitingCountsAsPriority) {
  Bench bench;
  const Ticket low = bench.Send("t", milliseconds(20), 1, 0);
  bench.now += seconds(3);  // the device was busy elsewhere
  bench.Send("t", milliseconds(20), 1, 2);
  EXPECT_EQ(bench.Step(), low);
}

TEST(FairQueueTest, FloodOfHighPriorityDoesNotStarveALowOne) {
  Bench bench;
  const Ticket low = bench.Send("t", milliseconds(20), 1, 0);
  int steps = 0;
  do {
    bench.Send("t", milliseconds(20), 1, 3);
    bench.Send("t", milliseconds(20), 1, 3);
    ASSERT_LT(++steps, 400);
  } while (bench.Step() != low);
}

TEST(FairQueueTest, LongRequestsThatHoldMemoryAreFew) {
  Bench bench({.max_long_requests = 2});
  for (int i = 0; i < 5; ++i) bench.Send("t", seconds(10));
  for (int i = 0; i < 50; ++i) bench.Step();
  EXPECT_EQ(bench.queue.waiting(), 3);
  const Ticket quick = bench.Send("t", milliseconds(1));
  EXPECT_TRUE(bench.Step() == quick || bench.Step() == quick) << "short ones pass";
}

TEST(FairQueueTest, DeviceHoldsOneOfAGroupAtATimeAndLetsOthersPass) {
  FairQueue queue(2, {});
  FairQueue::Job job;
  job.tenant = "t";
  job.estimate = seconds(1);
  job.group = 5;
  queue.Enqueue(5, job, TimePoint());
  queue.Enqueue(6, job, TimePoint());
  job.group = 0;
  queue.Enqueue(7, job, TimePoint());
  EXPECT_EQ(queue.Candidates(0, TimePoint()), std::vector<Ticket>{5});
  queue.Place(5, 0, TimePoint());
  EXPECT_EQ(queue.Candidates(0, TimePoint()), std::vector<Ticket>{7});
  EXPECT_EQ(queue.Candidates(1, TimePoint()), std::vector<Ticket>{6});
  queue.Remove(5);
  EXPECT_EQ(queue.Candidates(0, TimePoint()), std::vector<Ticket>{6});
}

TEST(FairQueueTest, RemovedRequestsAreForgotten) {
  Bench bench;
  const Ticket waiting = bench.Send("t", seconds(1));
  bench.queue.Remove(waiting);
  EXPECT_EQ(bench.queue.waiting(), 0);
  const Ticket placed = bench.Send("t", seconds(1));
  bench.PlaceAll();
  bench.queue.Remove(placed);
  EXPECT_FALSE(bench.Step().has_value());
}

TEST(FairQueueTest, WhatIsStillBeingCopiedDoesNotRun) {
  FairQueue queue(1, {});
  FairQueue::Job job;
  job.tenant = "t";
  job.estimate = milliseconds(1);
  queue.Enqueue(1, job, TimePoint());
  queue.Place(1, 0, TimePoint());
  EXPECT_FALSE(queue.Next(0, TimePoint()).has_value());
  queue.MakeRunnable(1);
  EXPECT_EQ(queue.Next(0, TimePoint()), Ticket{1});
}

}  // namespace
}  // namespace flashbob::server
