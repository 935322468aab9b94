#include "server/service/grpc_status.h"

#include <gtest/gtest.h>

#include "flashbob/v1/error_details.pb.h"
#include "server/base/errors.h"
#include "tests/server/testing/compute_client.h"

namespace flashbob::server {
namespace {

TEST(GrpcStatusTest, CarriesCodeTextReasonAndRetry) {
  const grpc::Status status =
      ToGrpcStatus(RetryableError(Reason::kQueueFull, "8 wait", std::chrono::milliseconds(1500), {{"queued", 8}}));
  const WireError error = Decode(status);
  EXPECT_EQ(error.code, grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(error.text, "8 wait");
  EXPECT_EQ(error.reason, "QUEUE_FULL");
  EXPECT_EQ(error.domain, "flashbob");
  EXPECT_EQ(error.retry_seconds, 1.5);

  v1::StatusDetails details;
  ASSERT_TRUE(details.ParseFromString(status.error_details()));
  EXPECT_EQ(details.code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(details.message(), "8 wait");
  for (const google::protobuf::Any& detail : details.details()) {
    v1::ErrorInfo info;
    if (detail.type_url() == kErrorInfoUrl && info.ParseFromString(detail.value())) {
      EXPECT_EQ(info.metadata().at("queued"), "8");
    }
  }
}

TEST(GrpcStatusTest, OkIsOk) {
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
  EXPECT_EQ(ToGrpcStatus(absl::OkStatus()).error_details(), "");
}

TEST(GrpcStatusTest, StatusWithoutReasonHasNoDetails) {
  EXPECT_EQ(ToGrpcStatus(absl::CancelledError("left")).error_details(), "");
}

TEST(GrpcStatusTest, LongTextIsCutSoThatTrailersStayWithinWhatClientsTake) {
  const grpc::Status status = ToGrpcStatus(Error(Reason::kBadSpec, std::string(100000, 'x')));
  EXPECT_LT(status.error_message().size() + status.error_details().size(), 4096u);
  EXPECT_EQ(Decode(status).reason, "BAD_SPEC");
}

TEST(ErrorsTest, EveryReasonHasItsCode) {
  const std::map<std::string, absl::StatusCode> codes = {
      {"BAD_SPEC", absl::StatusCode::kInvalidArgument},          {"BAD_CHUNK", absl::StatusCode::kInvalidArgument},
      {"UNSUPPORTED_PROBLEM", absl::StatusCode::kUnimplemented}, {"TOO_LARGE", absl::StatusCode::kFailedPrecondition},
      {"QUEUE_FULL", absl::StatusCode::kResourceExhausted},      {"QUOTA", absl::StatusCode::kResourceExhausted},
      {"DEADLINE", absl::StatusCode::kDeadlineExceeded},         {"HANDLE", absl::StatusCode::kNotFound},
      {"CREDENTIALS", absl::StatusCode::kUnauthenticated},       {"DRAINING", absl::StatusCode::kUnavailable},
      {"DEVICE_LOST", absl::StatusCode::kUnavailable},
  };
  for (Reason reason : kAllReasons) {
    const absl::Status status = Error(reason, "text");
    ASSERT_EQ(codes.count(ReasonOf(status)), 1u) << ReasonOf(status);
    EXPECT_EQ(status.code(), codes.at(ReasonOf(status)));
  }
  EXPECT_EQ(kAllReasons.size(), codes.size());
}

TEST(ErrorsTest, WhatKernelsSayOfAProblemGetsItsReasonOnce) {
  EXPECT_EQ(ReasonOf(AsSpecError(absl::InvalidArgumentError("x"))), "BAD_SPEC");
  EXPECT_EQ(ReasonOf(AsSpecError(absl::UnimplementedError("x"))), "UNSUPPORTED_PROBLEM");
  EXPECT_EQ(ReasonOf(AsSpecError(absl::ResourceExhaustedError("x"))), "TOO_LARGE");
  EXPECT_EQ(AsSpecError(absl::ResourceExhaustedError("x")).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(AsSpecError(absl::InternalError("x"))), "");
  EXPECT_EQ(ReasonOf(AsSpecError(Error(Reason::kBadChunk, "x"))), "BAD_CHUNK");
}

}  // namespace
}  // namespace flashbob::server
