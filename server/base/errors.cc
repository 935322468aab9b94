#include "server/base/errors.h"

#include "absl/strings/cord.h"
#include "flashbob/v1/error_details.pb.h"

namespace flashbob::server {
namespace {

absl::StatusCode CodeOf(Reason reason) {
  switch (reason) {
    case Reason::kBadSpec:
    case Reason::kBadChunk:
      return absl::StatusCode::kInvalidArgument;
    case Reason::kUnsupportedProblem:
      return absl::StatusCode::kUnimplemented;
    case Reason::kTooLarge:
      return absl::StatusCode::kFailedPrecondition;
    case Reason::kQueueFull:
    case Reason::kQuota:
      return absl::StatusCode::kResourceExhausted;
    case Reason::kDeadline:
      return absl::StatusCode::kDeadlineExceeded;
    case Reason::kHandle:
      return absl::StatusCode::kNotFound;
    case Reason::kCredentials:
      return absl::StatusCode::kUnauthenticated;
    case Reason::kDraining:
    case Reason::kDeviceLost:
      return absl::StatusCode::kUnavailable;
  }
  return absl::StatusCode::kInternal;
}

void SetReason(absl::Status& status, Reason reason, ErrorNumbers numbers) {
  v1::ErrorInfo info;
  info.set_reason(Name(reason));
  info.set_domain(kErrorDomain);
  for (const auto& [name, number] : numbers) {
    (*info.mutable_metadata())[std::string(name)] = std::to_string(number);
  }
  status.SetPayload(kErrorInfoUrl, absl::Cord(info.SerializeAsString()));
}

}  // namespace

const char* Name(Reason reason) {
  switch (reason) {
    case Reason::kBadSpec:
      return "BAD_SPEC";
    case Reason::kBadChunk:
      return "BAD_CHUNK";
    case Reason::kUnsupportedProblem:
      return "UNSUPPORTED_PROBLEM";
    case Reason::kTooLarge:
      return "TOO_LARGE";
    case Reason::kQueueFull:
      return "QUEUE_FULL";
    case Reason::kQuota:
      return "QUOTA";
    case Reason::kDeadline:
      return "DEADLINE";
    case Reason::kHandle:
      return "HANDLE";
    case Reason::kCredentials:
      return "CREDENTIALS";
    case Reason::kDraining:
      return "DRAINING";
    case Reason::kDeviceLost:
      return "DEVICE_LOST";
  }
  return "UNKNOWN";
}

absl::Status Error(Reason reason, const std::string& text, ErrorNumbers numbers) {
  absl::Status status(CodeOf(reason), text);
  SetReason(status, reason, numbers);
  return status;
}

absl::Status RetryableError(Reason reason, const std::string& text, Duration delay, ErrorNumbers numbers) {
  absl::Status status = Error(reason, text, numbers);
  v1::RetryInfo retry;
  retry.mutable_retry_delay()->set_seconds(delay / std::chrono::seconds(1));
  retry.mutable_retry_delay()->set_nanos(static_cast<int32_t>((delay % std::chrono::seconds(1)).count()));
  status.SetPayload(kRetryInfoUrl, absl::Cord(retry.SerializeAsString()));
  return status;
}

absl::Status AsSpecError(const absl::Status& status) {
  if (status.ok() || status.GetPayload(kErrorInfoUrl).has_value()) return status;
  // From a plan, that is for ever: it is too large for the engine, not for what is free now.
  if (status.code() == absl::StatusCode::kResourceExhausted) {
    return Error(Reason::kTooLarge, std::string(status.message()));
  }
  absl::Status with_reason = status;
  if (status.code() == absl::StatusCode::kInvalidArgument) SetReason(with_reason, Reason::kBadSpec, {});
  if (status.code() == absl::StatusCode::kUnimplemented) SetReason(with_reason, Reason::kUnsupportedProblem, {});
  return with_reason;
}

std::string ReasonOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kErrorInfoUrl);
  v1::ErrorInfo info;
  if (!payload.has_value() || !info.ParseFromString(std::string(*payload))) return "";
  return info.reason();
}

std::optional<Duration> RetryDelayOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kRetryInfoUrl);
  v1::RetryInfo retry;
  if (!payload.has_value() || !retry.ParseFromString(std::string(*payload))) return std::nullopt;
  return std::chrono::seconds(retry.retry_delay().seconds()) + std::chrono::nanoseconds(retry.retry_delay().nanos());
}

}  // namespace flashbob::server
