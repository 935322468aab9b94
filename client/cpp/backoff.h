// Backoff: the pauses between the tries of one call, by a RetryPolicy. Internal to the library.
#ifndef FLASHBOB_CLIENT_CPP_BACKOFF_H_
#define FLASHBOB_CLIENT_CPP_BACKOFF_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <random>

#include "absl/status/status.h"
#include "flashbob/retry.h"

namespace flashbob::client {

class Backoff {
 public:
  Backoff(const RetryPolicy& policy, uint64_t seed) : policy_(policy), random_(seed) {}

  // How long to wait after a try that failed; nothing where another try is of no use or one too many.
  std::optional<std::chrono::nanoseconds> PauseAfter(const absl::Status& error);

 private:
  RetryPolicy policy_;
  std::mt19937_64 random_;
  int failures_ = 0;
};

}  // namespace flashbob::client

#endif  // FLASHBOB_CLIENT_CPP_BACKOFF_H_
