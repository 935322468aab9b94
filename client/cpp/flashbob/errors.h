// What an error of the server says beyond its code and text. For statuses that Client returned.
#ifndef FLASHBOB_CLIENT_CPP_FLASHBOB_ERRORS_H_
#define FLASHBOB_CLIENT_CPP_FLASHBOB_ERRORS_H_

#include <chrono>
#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"

namespace flashbob::client {

// Why, stable across versions: BAD_SPEC, BAD_CHUNK, UNSUPPORTED_PROBLEM, TOO_LARGE, QUEUE_FULL, QUOTA, DEADLINE,
// HANDLE, CREDENTIALS, DRAINING, DEVICE_LOST; empty where the server gave none (as when it was not reached).
std::string ReasonOf(const absl::Status& status);

// The numbers that the text names, by name, where the server gave any.
std::map<std::string, std::string> DetailsOf(const absl::Status& status);

// How long to wait before the next try; nothing where the server did not say that a retry is right.
std::optional<std::chrono::nanoseconds> RetryDelayOf(const absl::Status& status);

}  // namespace flashbob::client

#endif  // FLASHBOB_CLIENT_CPP_FLASHBOB_ERRORS_H_
