// Errors as the service gives them: an absl::Status that carries google.rpc.ErrorInfo (the reason) and, where a retry
// is right, google.rpc.RetryInfo as payloads under google.rpc's type URLs. ToGrpcStatus puts them on the wire as they
// are.
#ifndef FLASHBOB_SERVER_BASE_ERRORS_H_
#define FLASHBOB_SERVER_BASE_ERRORS_H_

#include <array>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "server/base/clock.h"

namespace flashbob::server {

// Why; proto/flashbob/v1/attention_service.proto says when each is given.
enum class Reason : uint8_t {
  kBadSpec,
  kBadChunk,
  kUnsupportedProblem,
  kTooLarge,
  kQueueFull,
  kQuota,
  kDeadline,
  kHandle,
  kCredentials,
  kDraining,
  kDeviceLost,
};
inline constexpr std::array kAllReasons = {
    Reason::kBadSpec,     Reason::kBadChunk, Reason::kUnsupportedProblem, Reason::kTooLarge,
    Reason::kQueueFull,   Reason::kQuota,    Reason::kDeadline,           Reason::kHandle,
    Reason::kCredentials, Reason::kDraining, Reason::kDeviceLost,
};
const char* Name(Reason reason);  // "BAD_SPEC"

inline constexpr char kErrorDomain[] = "flashbob";
inline constexpr char kErrorInfoUrl[] = "type.googleapis.com/google.rpc.ErrorInfo";
inline constexpr char kRetryInfoUrl[] = "type.googleapis.com/google.rpc.RetryInfo";

// Numbers that the text names, for programs: ErrorInfo.metadata.
using ErrorNumbers = std::initializer_list<std::pair<std::string_view, int64_t>>;

// An error with the code that belongs to the reason.
absl::Status Error(Reason reason, const std::string& text, ErrorNumbers numbers = {});

// The same, worth a retry after `delay`.
absl::Status RetryableError(Reason reason, const std::string& text, Duration delay, ErrorNumbers numbers = {});

// Gives `status` the reason that its code has on a spec, where it has none: what kernels/ says of a problem.
absl::Status AsSpecError(const absl::Status& status);

// The name of the reason that a status carries; empty where there is none.
std::string ReasonOf(const absl::Status& status);

// The delay after which to try again; nothing where a retry is not right.
std::optional<Duration> RetryDelayOf(const absl::Status& status);

}  // namespace flashbob::server

#endif  // FLASHBOB_SERVER_BASE_ERRORS_H_
