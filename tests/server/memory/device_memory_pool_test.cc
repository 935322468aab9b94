#include "server/memory/device_memory_pool.h"

#include <gtest/gtest.h>

namespace flashbob::server {
namespace {

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kLimit = 1024 * kMiB;

TEST(DeviceMemoryPoolTest, CountsWhatIsReserved) {
  DeviceMemoryPool pool(kLimit);
  {
    const auto first = pool.TryReserve(100 * kMiB);
    const auto second = pool.TryReserve(10 * kMiB);
    ASSERT_TRUE(first.has_value() && second.has_value());
    EXPECT_EQ(pool.GetUse().reserved_bytes, 110 * kMiB);
  }
  EXPECT_EQ(pool.GetUse().reserved_bytes, 0);
  EXPECT_EQ(pool.GetUse().high_water_bytes, 110 * kMiB);
  EXPECT_EQ(pool.GetUse().limit_bytes, kLimit);
}

TEST(DeviceMemoryPoolTest, AnEighthIsKeptForSmallRequests) {
  DeviceMemoryPool pool(kLimit);
  const auto large = pool.TryReserve(kLimit * 7 / 8);
  ASSERT_TRUE(large.has_value());
  EXPECT_FALSE(pool.TryReserve(64 * kMiB).has_value());
  EXPECT_EQ(pool.GetUse().largest_free_bytes, 64 * kMiB - 1);
  const auto small = pool.TryReserve(64 * kMiB - 1);
  EXPECT_TRUE(small.has_value());
}

TEST(DeviceMemoryPoolTest, LargestRequestLeavesTheKeptPart) {
  DeviceMemoryPool pool(kLimit);
  EXPECT_EQ(pool.LargestRequest(), kLimit * 7 / 8);
  EXPECT_TRUE(pool.TryReserve(pool.LargestRequest()).has_value());
  EXPECT_FALSE(pool.TryReserve(pool.LargestRequest() + 1).has_value());
}

TEST(DeviceMemoryPoolTest, SmallDeviceGivesAllOfItselfToASmallRequest) {
  DeviceMemoryPool pool(1000);
  EXPECT_EQ(pool.LargestRequest(), 1000);
  EXPECT_TRUE(pool.TryReserve(1000).has_value());
}

TEST(DeviceMemoryPoolTest, SmallRequestsMakeDoWithTheKeptPartWhileALargeOneWaits) {
  DeviceMemoryPool pool(kLimit);
  const auto part = DeviceMemoryPool::Part::kKeptForSmall;
  EXPECT_FALSE(pool.TryReserve(100 * kMiB, part).has_value());
  const auto first = pool.TryReserve(60 * kMiB, part);
  const auto second = pool.TryReserve(60 * kMiB, part);
  ASSERT_TRUE(first.has_value() && second.has_value());
  EXPECT_FALSE(pool.TryReserve(60 * kMiB, part).has_value());
  EXPECT_TRUE(pool.TryReserve(60 * kMiB).has_value());
}

TEST(DeviceMemoryPoolTest, MovedReservationCountsOnce) {
  DeviceMemoryPool pool(kLimit);
  DeviceReservation held = *pool.TryReserve(kMiB);
  DeviceReservation moved = std::move(held);
  EXPECT_EQ(pool.GetUse().reserved_bytes, kMiB);
  held = DeviceReservation();
  EXPECT_EQ(pool.GetUse().reserved_bytes, kMiB);
  moved = DeviceReservation();
  EXPECT_EQ(pool.GetUse().reserved_bytes, 0);
}

}  // namespace
}  // namespace flashbob::server
