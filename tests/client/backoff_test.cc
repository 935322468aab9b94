#include "client/cpp/backoff.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "client/cpp/status.h"
#include "tests/client/fake_service.h"

namespace flashbob::client {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

const absl::Status kUnavailable = absl::UnavailableError("x");

TEST(BackoffTest, PausesGrowToTheLongestAndEndWithTheAttempts) {
  Backoff backoff({.max_attempts = 6,
                   .initial_backoff = milliseconds(10),
                   .max_backoff = milliseconds(50),
                   .multiplier = 2,
                   .jitter = 0},
                  1);
  for (int expected : {10, 20, 40, 50, 50}) {
    EXPECT_EQ(backoff.PauseAfter(kUnavailable), milliseconds(expected));
  }
  EXPECT_EQ(backoff.PauseAfter(kUnavailable), std::nullopt);
}

TEST(BackoffTest, OneAttemptMeansNoRetry) {
  EXPECT_EQ(Backoff({.max_attempts = 1}, 1).PauseAfter(kUnavailable), std::nullopt);
}

TEST(BackoffTest, JitterOnlyLengthensAndDiffers) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::set<nanoseconds> pauses;
  for (uint64_t i = 0; i < 100; ++i) {
    Backoff backoff({.initial_backoff = milliseconds(100), .jitter = 0.5}, seed + i);
    const nanoseconds pause = backoff.PauseAfter(kUnavailable).value();
    EXPECT_GE(pause, milliseconds(100));
    EXPECT_LE(pause, milliseconds(150));
    pauses.insert(pause);
  }
  EXPECT_GT(pauses.size(), 90u);
}

TEST(BackoffTest, OnlyWhatARetryCanMendIsRetried) {
  const auto retried = [](const absl::Status& status) { return Backoff({}, 1).PauseAfter(status).has_value(); };
  EXPECT_TRUE(retried(kUnavailable));
  EXPECT_FALSE(retried(absl::InvalidArgumentError("x")));
  EXPECT_FALSE(retried(absl::DeadlineExceededError("x")));
  EXPECT_FALSE(retried(absl::ResourceExhaustedError("x")));
  EXPECT_FALSE(retried(absl::InternalError("x")));
  EXPECT_TRUE(retried(
      FromGrpcStatus(ErrorWithDetails(grpc::StatusCode::RESOURCE_EXHAUSTED, "x", "QUOTA", /*retry_milliseconds=*/1))));
}

TEST(BackoffTest, TheLongerOfOwnPauseAndTheServersIsTaken) {
  const absl::Status asked =
      FromGrpcStatus(ErrorWithDetails(grpc::StatusCode::UNAVAILABLE, "x", "DRAINING", /*retry_milliseconds=*/30));
  Backoff backoff({.initial_backoff = milliseconds(20), .jitter = 0}, 1);
  EXPECT_EQ(backoff.PauseAfter(asked), milliseconds(30));
  EXPECT_EQ(backoff.PauseAfter(asked), milliseconds(40));
}

TEST(BackoffTest, NeitherHugeDelaysNorManyAttemptsOverflow) {
  const absl::Status forever = FromGrpcStatus(
      ErrorWithDetails(grpc::StatusCode::UNAVAILABLE, "x", "DRAINING", /*retry_milliseconds=*/int64_t{1} << 62));
  Backoff backoff({.max_attempts = 100000, .max_backoff = nanoseconds::max(), .multiplier = 10}, 1);
  EXPECT_GT(backoff.PauseAfter(forever), std::chrono::hours(24 * 365));
  for (int i = 0; i < 1000; ++i) EXPECT_GE(backoff.PauseAfter(kUnavailable), milliseconds(100));
}

}  // namespace
}  // namespace flashbob::client
