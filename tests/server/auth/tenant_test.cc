#include "server/auth/tenant.h"

#include <gtest/gtest.h>

#include "server/base/errors.h"

namespace flashbob::server {
namespace {

TEST(TenantTest, HoldsAreCountedAndGivenBack) {
  const auto tenant = Tenant::Create({});
  {
    const auto hold = tenant->Hold(100, 1);
    ASSERT_TRUE(hold.ok());
    EXPECT_EQ(tenant->GetUse().bytes, 100);
    EXPECT_EQ(tenant->GetUse().in_flight, 1);
  }
  EXPECT_EQ(tenant->GetUse().bytes, 0);
  EXPECT_EQ(tenant->GetUse().in_flight, 0);
}

TEST(TenantTest, WhatExceedsTheQuotaNowIsWorthARetry) {
  const auto tenant = Tenant::Create({.name = "small", .max_bytes = 100});
  auto first = tenant->Hold(60, 1);
  const absl::Status refusal = tenant->Hold(60, 1).status();
  EXPECT_EQ(refusal.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(refusal), "QUOTA");
  EXPECT_TRUE(RetryDelayOf(refusal).has_value());
  EXPECT_EQ(refusal.message(), "tenant small holds 60 of 100 bytes; this takes 60 more");
  first = TenantHold();
  EXPECT_TRUE(tenant->Hold(60, 1).ok());
}

TEST(TenantTest, WhatAlwaysExceedsTheQuotaIsNot) {
  const auto tenant = Tenant::Create({.name = "small", .max_bytes = 100});
  const absl::Status refusal = tenant->Hold(101, 1).status();
  EXPECT_EQ(ReasonOf(refusal), "TOO_LARGE");
  EXPECT_FALSE(RetryDelayOf(refusal).has_value());
}

TEST(TenantTest, RequestsInFlightAreBounded) {
  const auto tenant = Tenant::Create({.max_in_flight = 2});
  const auto first = tenant->Hold(0, 1);
  auto second = tenant->Hold(0, 1);
  EXPECT_EQ(ReasonOf(tenant->Hold(0, 1).status()), "QUOTA");
  second = TenantHold();
  EXPECT_TRUE(tenant->Hold(0, 1).ok());
}

TEST(TenantTest, SplitBytesLiveOnTheirOwn) {
  const auto tenant = Tenant::Create({});
  TenantHold kept;
  {
    TenantHold request = *tenant->Hold(100, 1);
    kept = request.Split(30);
    EXPECT_EQ(request.bytes(), 70);
    EXPECT_EQ(tenant->GetUse().bytes, 100);
  }
  EXPECT_EQ(tenant->GetUse().bytes, 30);
  EXPECT_EQ(tenant->GetUse().in_flight, 0);
}

}  // namespace
}  // namespace flashbob::server
