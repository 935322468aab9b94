// What a client tries again, and when.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "flashbob/client.h"
#include "tests/client/fake_service.h"
#include "tests/client/small_problem.h"

namespace flashbob::client {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

// Time that passes only by sleeping.
class FakeClock : public Clock {
 public:
  std::chrono::steady_clock::time_point Now() override {
    const MutexLock lock(mutex_);
    return now_;
  }
  void Sleep(nanoseconds duration, const Cancellation& cancellation) override {
    {
      const MutexLock lock(mutex_);
      now_ += duration;
      pauses_.push_back(duration);
    }
    if (on_sleep) on_sleep(cancellation);
  }
  std::vector<nanoseconds> pauses() {
    const MutexLock lock(mutex_);
    return pauses_;
  }

  std::function<void(const Cancellation&)> on_sleep;

 private:
  Mutex mutex_;
  std::chrono::steady_clock::time_point now_ FLASHBOB_GUARDED_BY(mutex_);
  std::vector<nanoseconds> pauses_ FLASHBOB_GUARDED_BY(mutex_);
};

// A client whose clock moves by sleeping only, without jitter.
class RetryTest : public ::testing::Test {
 protected:
  absl::StatusOr<Result> Forward(const FakeService& service, const CallOptions& call = {}) {
    ClientOptions options;
    options.clock = clock_;
    options.retry = {.max_attempts = 4, .jitter = 0};
    return ConnectTo(service, options).Forward(problem_.inputs(), {}, call);
  }

  const std::shared_ptr<FakeClock> clock_ = std::make_shared<FakeClock>();
  const Problem problem_ = {};
};

const grpc::Status kQueueFull =
    ErrorWithDetails(grpc::StatusCode::RESOURCE_EXHAUSTED, "64 requests wait; the limit is 64", "QUEUE_FULL", 1500);

TEST_F(RetryTest, ComesBackAfterTheDelayThatTheServerGaveWithTheSameRequestId) {
  const FakeService service({FailWith(kQueueFull), Echo(v1::TENSOR_NAME_O)});
  const absl::StatusOr<Result> result = Forward(service);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(clock_->pauses(), std::vector<nanoseconds>{milliseconds(1500)});
  ASSERT_EQ(service.Calls(), 2);
  EXPECT_EQ(service.Specs()[0].request_id(), service.Specs()[1].request_id());
}

TEST_F(RetryTest, UnavailableIsTriedAgainWithGrowingPausesUntilTheAttemptsAreSpent) {
  const FakeService service({FailWith({grpc::StatusCode::UNAVAILABLE, "going down"})});
  const absl::Status status = Forward(service).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(Contains(status, service.address())) << status;
  EXPECT_EQ(service.Calls(), 4);
  EXPECT_EQ(clock_->pauses(), (std::vector<nanoseconds>{milliseconds(100), milliseconds(200), milliseconds(400)}));
}

TEST_F(RetryTest, ExhaustionWithoutADelayIsNotTriedAgain) {
  const FakeService service({FailWith({grpc::StatusCode::RESOURCE_EXHAUSTED, "message larger than max"})});
  EXPECT_EQ(Forward(service).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(service.Calls(), 1);
}

TEST_F(RetryTest, PauseThatWouldPassTheDeadlineIsNotBegun) {
  const FakeService service({FailWith(kQueueFull)});
  const absl::Status status = Forward(service, {.timeout = seconds(4)}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(status), "QUEUE_FULL");
  EXPECT_EQ(RetryDelayOf(status), milliseconds(1500));
  EXPECT_EQ(clock_->pauses().size(), 2u);  // 1.5 s and 3 s have passed; a third pause would end at 4.5 s
}

TEST_F(RetryTest, StreamThatBreaksInTheMiddleOfAnOutputIsRepeated) {
  const FakeService service(
      {[](grpc::ServerContext&, const v1::ComputeSpec& spec, ServerStream& stream) -> grpc::Status {
         ReadInputs(spec, stream);
         stream.Write(ResultOf(v1::TENSOR_NAME_O, kShape));
         stream.Write(ChunkOf(0, 0, std::string(40, 'x')));
         return {grpc::StatusCode::UNAVAILABLE, "connection reset"};
       },
       Echo(v1::TENSOR_NAME_O)});
  const absl::StatusOr<Result> result = Forward(service);
  ASSERT_TRUE(result.ok()) << result.status();
  const std::span<const float> o = result->Values<float>("o");
  EXPECT_EQ(std::vector<float>(o.begin(), o.end()), problem_.q);
}

TEST_F(RetryTest, CallThatTheServerCancelsIsTriedAgainAsOneThatBroke) {
  const FakeService service({FailWith(grpc::Status::CANCELLED), Echo(v1::TENSOR_NAME_O)});
  EXPECT_TRUE(Forward(service).ok());
  const FakeService gone({FailWith(grpc::Status::CANCELLED)});
  const absl::Status status = Forward(gone).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(Contains(status, gone.address())) << status;
}

TEST_F(RetryTest, CallWhoseStreamWasResetBelowTheServiceIsTriedAgainAsOneThatBroke) {
  const grpc::Status reset(grpc::StatusCode::INTERNAL, "Received RST_STREAM with error code 1");
  const FakeService service({FailWith(reset), Echo(v1::TENSOR_NAME_O)});
  EXPECT_TRUE(Forward(service).ok());
  EXPECT_EQ(service.Calls(), 2);
  const FakeService gone({FailWith(reset)});
  const absl::Status status = Forward(gone).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(Contains(status, gone.address()) && Contains(status, reset.error_message())) << status;
  EXPECT_EQ(gone.Calls(), 4);
}

TEST_F(RetryTest, InternalErrorOfAnotherKindIsNotTriedAgain) {
  for (const grpc::Status& error :
       {grpc::Status(grpc::StatusCode::INTERNAL, "a bug"),
        ErrorWithDetails(grpc::StatusCode::INTERNAL, "of the service's own, about RST_STREAM", "BUG")}) {
    const FakeService service({FailWith(error)});
    EXPECT_EQ(Forward(service).status().code(), absl::StatusCode::kInternal);
    EXPECT_EQ(service.Calls(), 1);
  }
}

TEST_F(RetryTest, CancellationEndsAPause) {
  const FakeService service({FailWith(kQueueFull)});
  Cancellation cancellation;
  clock_->on_sleep = [&](const Cancellation&) { cancellation.Cancel(); };
  EXPECT_EQ(Forward(service, {.cancellation = cancellation}).status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(service.Calls(), 1);
}

}  // namespace
}  // namespace flashbob::client
