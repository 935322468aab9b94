#include "flashbob/errors.h"

#include "absl/strings/cord.h"
#include "client/cpp/status.h"
#include "client/cpp/wire.h"
#include "flashbob/v1/error_details.pb.h"

namespace flashbob::client {
namespace {

constexpr char kErrorInfoUrl[] = "type.googleapis.com/google.rpc.ErrorInfo";
constexpr char kRetryInfoUrl[] = "type.googleapis.com/google.rpc.RetryInfo";

// False where the status has no such payload or it cannot be read.
template <typename Message>
bool GetPayload(const absl::Status& status, const char* url, Message& message) {
  const auto payload = status.GetPayload(url);
  return payload.has_value() && message.ParseFromString(std::string(*payload));
}

}  // namespace

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  absl::Status converted(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  v1::StatusDetails details;
  if (details.ParseFromString(status.error_details())) {
    for (const auto& detail : details.details()) converted.SetPayload(detail.type_url(), absl::Cord(detail.value()));
  }
  return converted;
}

std::string ReasonOf(const absl::Status& status) {
  v1::ErrorInfo info;
  return GetPayload(status, kErrorInfoUrl, info) ? info.reason() : std::string();
}

std::map<std::string, std::string> DetailsOf(const absl::Status& status) {
  v1::ErrorInfo info;
  if (!GetPayload(status, kErrorInfoUrl, info)) return {};
  return {info.metadata().begin(), info.metadata().end()};
}

std::optional<std::chrono::nanoseconds> RetryDelayOf(const absl::Status& status) {
  v1::RetryInfo info;
  if (!GetPayload(status, kRetryInfoUrl, info)) return std::nullopt;
  return ToNanoseconds(info.retry_delay());
}

}  // namespace flashbob::client
