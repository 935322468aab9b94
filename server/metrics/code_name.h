// Names of gRPC's status codes, which are absl's, and their place in tables.
#ifndef FLASHBOB_SERVER_METRICS_CODE_NAME_H_
#define FLASHBOB_SERVER_METRICS_CODE_NAME_H_

#include <array>
#include <cstddef>

#include "absl/status/status.h"

namespace flashbob::server {

inline constexpr std::array<const char*, 17> kCodeNames = {
    "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
    "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
    "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
    "DATA_LOSS", "UNAUTHENTICATED"};
inline constexpr size_t kNumCodes = kCodeNames.size();

// UNKNOWN's for what is no code.
inline constexpr size_t CodeIndex(absl::StatusCode code) {
  const auto index = static_cast<size_t>(code);
  return index < kNumCodes ? index : static_cast<size_t>(absl::StatusCode::kUnknown);
}

inline constexpr const char* CodeName(absl::StatusCode code) { return kCodeNames[CodeIndex(code)]; }

}  // namespace flashbob::server

#endif  // FLASHBOB_SERVER_METRICS_CODE_NAME_H_
