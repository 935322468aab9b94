#include "server/memory/host_memory_pool.h"

#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "server/base/errors.h"
#include "tests/seed.h"
#include "tests/server/testing/step_clock.h"
#include "tests/server/testing/stepped_engine.h"

namespace flashbob::server {
namespace {

constexpr int64_t kLimit = 1 << 20;

class HostMemoryPoolTest : public testing::Test {
 protected:
  SteppedEngine engine_;
  StepClock clock_;
  HostMemoryPool pool_{engine_, clock_, kLimit};
  const std::atomic<bool> wanted_ = false;  // a "withdrawn" that never comes true
};

TEST_F(HostMemoryPoolTest, ReservesUpToItsLimitAndNotAByteMore) {
  std::optional<Reservation> all = pool_.TryReserve(kLimit);
  ASSERT_TRUE(all.has_value());
  EXPECT_FALSE(pool_.TryReserve(1).has_value());
  EXPECT_EQ(pool_.Use().reserved_bytes, kLimit);
  all.reset();
  EXPECT_EQ(pool_.Use().reserved_bytes, 0);
  EXPECT_EQ(pool_.Use().high_water_bytes, kLimit);
  EXPECT_FALSE(pool_.TryReserve(kLimit + 1).has_value());
}

TEST_F(HostMemoryPoolTest, BufferTakesItsShareFromTheReservationAndGivesItBack) {
  Reservation reservation = *pool_.TryReserve(HostMemoryPool::BlockBytes(10000) + 100);
  HostBuffer buffer = *pool_.Allocate(reservation, 10000);
  EXPECT_EQ(buffer.bytes(), 10000);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % kTensorAlignment, 0u);
  EXPECT_EQ(reservation.bytes(), 100);
  EXPECT_EQ(pool_.Use().reserved_bytes, HostMemoryPool::BlockBytes(10000) + 100);
  buffer = HostBuffer();
  EXPECT_EQ(pool_.Use().reserved_bytes, 100);
}

TEST_F(HostMemoryPoolTest, BufferLargerThanItsReservationIsRefused) {
  Reservation reservation = *pool_.TryReserve(4096);
  EXPECT_FALSE(pool_.Allocate(reservation, 4097).ok());
  EXPECT_EQ(reservation.bytes(), 4096);
}

TEST_F(HostMemoryPoolTest, EmptyBufferCostsNothing) {
  Reservation none;
  const absl::StatusOr<HostBuffer> buffer = pool_.Allocate(none, 0);
  ASSERT_TRUE(buffer.ok());
  EXPECT_EQ(buffer->data(), nullptr);
}

TEST_F(HostMemoryPoolTest, SizeClassesWasteAtMostAnEighth) {
  for (int64_t bytes : {1, 4096, 4097, 100000, 1 << 20, (1 << 20) + 1, 123456789}) {
    const int64_t block = HostMemoryPool::BlockBytes(bytes);
    EXPECT_GE(block, bytes);
    EXPECT_LE(block, bytes + std::max<int64_t>(4095, bytes / 8));
    EXPECT_EQ(HostMemoryPool::BlockBytes(block), block) << "a class is its own class";
  }
}

TEST_F(HostMemoryPoolTest, FreedBlockServesTheNextOfItsClass) {
  Reservation reservation = *pool_.TryReserve(2 * HostMemoryPool::BlockBytes(70000));
  const std::byte* const first = pool_.Allocate(reservation, 70000)->data();
  EXPECT_EQ(pool_.Allocate(reservation, 69000)->data(), first);
}

TEST_F(HostMemoryPoolTest, KnowsWhatItsCacheCanServe) {
  EXPECT_TRUE(pool_.HasCached({}));
  EXPECT_TRUE(pool_.HasCached({0, 0})) << "empty tensors need no block";
  EXPECT_FALSE(pool_.HasCached({5000}));
  {
    Reservation reservation = *pool_.TryReserve(3 * 8192);
    const HostBuffer one = *pool_.Allocate(reservation, 5000);
    const HostBuffer other = *pool_.Allocate(reservation, 6000);
    EXPECT_FALSE(pool_.HasCached({5000})) << "in use";
  }
  EXPECT_TRUE(pool_.HasCached({8000, 0, 4097})) << "two blocks of one class";
  EXPECT_FALSE(pool_.HasCached({8000, 8000, 8000}));
  EXPECT_FALSE(pool_.HasCached({4096}));
}

TEST_F(HostMemoryPoolTest, CachedBlocksMakeRoomForOtherClasses) {
  for (int64_t bytes : {kLimit, kLimit / 2, kLimit / 4, int64_t{4096}, kLimit}) {
    Reservation reservation = *pool_.TryReserve(bytes);
    ASSERT_TRUE(pool_.Allocate(reservation, bytes).ok());
    EXPECT_LE(engine_.live_host_bytes(), kLimit);
  }
}

TEST_F(HostMemoryPoolTest, TrimGivesBackWhatNobodyUsedSince) {
  const auto use_block = [&](int64_t bytes) {
    Reservation reservation = *pool_.TryReserve(bytes);
    ASSERT_TRUE(pool_.Allocate(reservation, bytes).ok());
  };
  use_block(8192);
  clock_.Step(std::chrono::seconds(10));
  use_block(65536);
  pool_.Trim(clock_.Now() - std::chrono::seconds(5));
  EXPECT_EQ(engine_.live_host_bytes(), 65536);
  EXPECT_EQ(pool_.Use().used_bytes, 65536);
  clock_.Step(std::chrono::seconds(10));
  pool_.Trim(clock_.Now() - std::chrono::seconds(5));
  EXPECT_EQ(engine_.live_host_bytes(), 0);
}

TEST_F(HostMemoryPoolTest, MachineWithoutMemoryIsAnErrorWorthARetryAndLeavesNothing) {
  engine_.LimitHostBytes(10000);
  {
    Reservation reservation = *pool_.TryReserve(kLimit);
    const absl::StatusOr<HostBuffer> buffer = pool_.Allocate(reservation, 20000);
    EXPECT_EQ(buffer.status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_TRUE(RetryDelayOf(buffer.status()).has_value());
    EXPECT_EQ(reservation.bytes(), kLimit);
  }
  EXPECT_EQ(pool_.Use().reserved_bytes, 0);
  EXPECT_EQ(pool_.Use().used_bytes, 0);
}

TEST_F(HostMemoryPoolTest, CachedBlocksAreGivenUpWhereTheMachineHasNoMemoryLeft) {
  engine_.LimitHostBytes(20000);
  Reservation reservation = *pool_.TryReserve(kLimit);
  ASSERT_TRUE(pool_.Allocate(reservation, 12000).ok());
  EXPECT_TRUE(pool_.Allocate(reservation, 16000).ok());
}

TEST_F(HostMemoryPoolTest, WaitersAreServedInTheirOrder) {
  std::optional<Reservation> held = pool_.TryReserve(kLimit);
  std::vector<int> order;
  Mutex mutex;
  std::vector<std::thread> threads;
  const auto start_waiter = [&](int id, int64_t bytes) {
    threads.emplace_back([&, id, bytes] {
      const std::optional<Reservation> reservation = pool_.Reserve(bytes, wanted_);
      MutexLock lock(mutex);
      order.push_back(id);
    });
    while (pool_.Use().waiting < static_cast<int64_t>(threads.size())) std::this_thread::yield();
  };
  start_waiter(0, kLimit);  // the large ones first: a small one may not overtake them
  start_waiter(1, kLimit);
  start_waiter(2, 1);
  EXPECT_FALSE(pool_.TryReserve(0).has_value()) << "nor may one that would not wait";
  held.reset();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2}));
}

TEST_F(HostMemoryPoolTest, WithdrawnWaiterReturnsAndLetsTheNextPass) {
  const std::optional<Reservation> held = pool_.TryReserve(kLimit - 100);
  std::atomic<bool> withdrawn = false;
  std::thread first([&] { EXPECT_FALSE(pool_.Reserve(kLimit, withdrawn).has_value()); });
  while (pool_.Use().waiting < 1) std::this_thread::yield();
  std::thread second([&] { EXPECT_TRUE(pool_.Reserve(100, wanted_).has_value()); });
  while (pool_.Use().waiting < 2) std::this_thread::yield();
  withdrawn = true;
  pool_.WakeWaiters();
  first.join();
  second.join();
}

TEST_F(HostMemoryPoolTest, MoreThanTheLimitNeverWaits) { EXPECT_FALSE(pool_.Reserve(kLimit + 1, wanted_).has_value()); }

TEST_F(HostMemoryPoolTest, CountsStayRightUnderManyThreads) {
  const uint64_t seed = testing_seed::Seed();
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(seed + t);
      for (int i = 0; i < 300; ++i) {
        const auto bytes = static_cast<int64_t>(random() % (kLimit / 3)) + 1;
        std::optional<Reservation> reservation = pool_.Reserve(HostMemoryPool::BlockBytes(bytes), wanted_);
        const absl::StatusOr<HostBuffer> buffer = pool_.Allocate(*reservation, bytes);
        ASSERT_TRUE(buffer.ok());
        buffer->data()[bytes - 1] = std::byte{1};
        const PoolUse use = pool_.Use();
        EXPECT_LE(use.reserved_bytes, kLimit);
        EXPECT_LE(use.used_bytes, kLimit);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pool_.Use().reserved_bytes, 0);
  EXPECT_EQ(pool_.Use().used_bytes, engine_.live_host_bytes());
}

}  // namespace
}  // namespace flashbob::server
