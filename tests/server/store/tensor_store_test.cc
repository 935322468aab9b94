#include "server/store/tensor_store.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "server/base/errors.h"
#include "tests/server/testing/step_clock.h"
#include "tests/server/testing/stepped_engine.h"

namespace flashbob::server {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;

constexpr int64_t kBytes = 4096;

struct Bench {
  Bench() : pool(engine, clock, 100 * kBytes), store(clock, Options()) {}
  static TensorStore::Options Options() {
    TensorStore::Options options;
    options.server = "node7";
    options.max_bytes = 4 * kBytes;
    options.default_lease = minutes(10);
    options.max_lease = minutes(60);
    return options;
  }

  TensorStore::Item Item(const std::string& request_id, char fill, TensorName name = TensorName::kQ) {
    Reservation reservation = *pool.TryReserve(kBytes);
    TensorStore::Item item;
    item.request_id = request_id;
    item.info = {name, DType::kFloat32, {1, 1, 32, 32}};
    item.bytes = *pool.Allocate(reservation, kBytes);
    std::memset(item.bytes.data(), fill, kBytes);
    item.hold = *alice->Hold(kBytes, 0);
    return item;
  }
  std::string Put(const std::string& request_id, char fill = 'x', Duration lease = {}) {
    StoreRoom room = *store.Reserve(kBytes);
    TensorStore::Item item = Item(request_id, fill);
    item.lease = lease;
    return store.Put(*alice, room, std::move(item));
  }
  char First(const std::string& handle) { return static_cast<char>(*store.Get(*alice, handle)->bytes->data()); }

  StepClock clock;
  SteppedEngine engine;
  HostMemoryPool pool;
  const std::shared_ptr<Tenant> alice = Tenant::Create({.name = "alice"});
  const std::shared_ptr<Tenant> bob = Tenant::Create({.name = "bob"});
  TensorStore store;
};

TEST(TensorStoreTest, GivesBackWhatWasPut) {
  Bench bench;
  const std::string handle = bench.Put("r", 'a');
  const auto tensor = bench.store.Get(*bench.alice, handle);
  ASSERT_TRUE(tensor.ok());
  EXPECT_EQ(tensor->info.name, TensorName::kQ);
  EXPECT_EQ(tensor->info.shape, (Shape{1, 1, 32, 32}));
  EXPECT_EQ(tensor->bytes->bytes(), kBytes);
  EXPECT_EQ(bench.First(handle), 'a');
}

TEST(TensorStoreTest, HandlesNameTheirServerAndAreUnguessable) {
  Bench bench;
  std::set<std::string> handles;
  for (int i = 0; i < 4; ++i) handles.insert(bench.Put(std::to_string(i)));
  EXPECT_EQ(handles.size(), 4u);
  for (const std::string& handle : handles) {
    EXPECT_EQ(handle.substr(0, 6), "node7.");
    EXPECT_EQ(handle.size(), 6u + 32u);
  }
}

TEST(TensorStoreTest, OthersTenantsHandleIsAsUnknownAsNone) {
  Bench bench;
  const std::string handle = bench.Put("r");
  const absl::Status others = bench.store.Get(*bench.bob, handle).status();
  const absl::Status nobodys = bench.store.Get(*bench.bob, "node7.0").status();
  EXPECT_EQ(others.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ReasonOf(others), "HANDLE");
  EXPECT_EQ(others.message(), nobodys.message());
  EXPECT_EQ(bench.store.Delete(*bench.bob, {handle}), 0);
  EXPECT_TRUE(bench.store.Get(*bench.alice, handle).ok());
}

TEST(TensorStoreTest, LeaseEndsAndUseRenewsIt) {
  Bench bench;
  const std::string used = bench.Put("used");
  const std::string unused = bench.Put("unused");
  bench.clock.Step(minutes(9));
  EXPECT_TRUE(bench.store.Get(*bench.alice, used).ok());
  bench.clock.Step(minutes(9));
  EXPECT_TRUE(bench.store.Get(*bench.alice, used).ok());
  EXPECT_EQ(ReasonOf(bench.store.Get(*bench.alice, unused).status()), "HANDLE");
}

TEST(TensorStoreTest, LeaseIsTheOneAskedForUpToTheLimit) {
  Bench bench;
  const std::string brief = bench.Put("brief", 'x', seconds(5));
  const std::string lengthy = bench.Put("long", 'x', std::chrono::hours(1000));
  bench.clock.Step(seconds(6));
  EXPECT_FALSE(bench.store.Get(*bench.alice, brief).ok());
  bench.clock.Step(minutes(60));
  EXPECT_FALSE(bench.store.Get(*bench.alice, lengthy).ok());
}

TEST(TensorStoreTest, ExpiredLeasesGoFirstUnderPressureAndLiveOnesStay) {
  Bench bench;
  bench.Put("old", 'x', seconds(5));
  std::vector<std::string> live;
  for (int i = 0; i < 3; ++i) live.push_back(bench.Put(std::to_string(i)));
  const absl::Status full = bench.store.Reserve(kBytes).status();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(RetryDelayOf(full).has_value());
  bench.clock.Step(seconds(6));
  EXPECT_TRUE(bench.store.Reserve(kBytes).ok());
  EXPECT_FALSE(bench.store.Reserve(2 * kBytes).ok());
  for (const std::string& handle : live) EXPECT_TRUE(bench.store.Get(*bench.alice, handle).ok());
}

TEST(TensorStoreTest, WhatNeverFitsIsRefusedForGood) {
  Bench bench;
  const absl::Status refusal = bench.store.Reserve(5 * kBytes).status();
  EXPECT_EQ(ReasonOf(refusal), "TOO_LARGE");
  EXPECT_FALSE(RetryDelayOf(refusal).has_value());
}

TEST(TensorStoreTest, TensorOfARequestIsStoredOnce) {
  Bench bench;
  const std::string handle = bench.Put("r", 'a');
  EXPECT_EQ(bench.Put("r", 'b'), handle);
  EXPECT_EQ(bench.First(handle), 'a');
  EXPECT_EQ(bench.store.GetUse().tensors, 1);
  EXPECT_EQ(bench.store.GetUse().bytes, kBytes);
  EXPECT_EQ(bench.alice->GetUse().bytes, kBytes);
  StoreRoom room = *bench.store.Reserve(kBytes);
  EXPECT_NE(bench.store.Put(*bench.alice, room, bench.Item("r", 'c', TensorName::kK)), handle) << "another tensor";
}

TEST(TensorStoreTest, RetryAfterTheLeaseStoresAnew) {
  Bench bench;
  const std::string handle = bench.Put("r", 'a', seconds(5));
  bench.clock.Step(seconds(6));
  const std::string again = bench.Put("r", 'b');
  EXPECT_NE(again, handle);
  EXPECT_EQ(bench.First(again), 'b');
  EXPECT_EQ(bench.store.GetUse().bytes, kBytes);
}

TEST(TensorStoreTest, DeletingFreesAndIsIdempotent) {
  Bench bench;
  const std::string handle = bench.Put("r");
  EXPECT_EQ(bench.store.Delete(*bench.alice, {handle, "node7.unknown", handle}), 1);
  EXPECT_EQ(bench.store.Delete(*bench.alice, {handle}), 0);
  EXPECT_EQ(bench.store.GetUse().bytes, 0);
  EXPECT_EQ(bench.pool.Use().reserved_bytes, 0);
  EXPECT_EQ(bench.alice->GetUse().bytes, 0);
}

TEST(TensorStoreTest, WhoReadsATensorKeepsItsBytes) {
  Bench bench;
  const std::string handle = bench.Put("r", 'a');
  auto tensor = bench.store.Get(*bench.alice, handle);
  bench.store.Delete(*bench.alice, {handle});
  EXPECT_EQ(static_cast<char>(*tensor->bytes->data()), 'a');
  EXPECT_EQ(bench.pool.Use().reserved_bytes, kBytes);
  tensor = absl::CancelledError();
  EXPECT_EQ(bench.pool.Use().reserved_bytes, 0);
}

TEST(TensorStoreTest, DropExpiredFreesMemoryAndQuota) {
  Bench bench;
  bench.Put("old", 'x', seconds(5));
  bench.Put("new");
  bench.clock.Step(seconds(6));
  bench.store.DropExpired();
  EXPECT_EQ(bench.store.GetUse().tensors, 1);
  EXPECT_EQ(bench.pool.Use().reserved_bytes, kBytes);
  EXPECT_EQ(bench.alice->GetUse().bytes, kBytes);
}

TEST(TensorStoreTest, UnusedRoomIsGivenUp) {
  Bench bench;
  {
    const auto room = bench.store.Reserve(3 * kBytes);
    EXPECT_EQ(bench.store.GetUse().bytes, 3 * kBytes);
  }
  EXPECT_EQ(bench.store.GetUse().bytes, 0);
}

}  // namespace
}  // namespace flashbob::server
