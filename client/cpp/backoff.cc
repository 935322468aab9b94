#include "client/cpp/backoff.h"

#include <algorithm>
#include <cmath>

#include "flashbob/errors.h"

namespace flashbob::client {

std::optional<std::chrono::nanoseconds> Backoff::PauseAfter(const absl::Status& error) {
  const std::optional<std::chrono::nanoseconds> asked = RetryDelayOf(error);
  if (!asked.has_value() && error.code() != absl::StatusCode::kUnavailable) return std::nullopt;
  if (++failures_ >= policy_.max_attempts) return std::nullopt;

  // In doubles, where neither power nor product can overflow.
  const double grown =
      static_cast<double>(policy_.initial_backoff.count()) * std::pow(policy_.multiplier, failures_ - 1);
  const double own = std::min(grown, static_cast<double>(policy_.max_backoff.count()));
  const double pause = std::max(own, static_cast<double>(asked.value_or(std::chrono::nanoseconds(0)).count()));
  const double spread = 1 + std::uniform_real_distribution<double>(0, 1)(random_) * policy_.jitter;
  constexpr double kLongest = 1e18;  // 30 years, well within nanoseconds of 63 bits
  return std::chrono::nanoseconds(static_cast<int64_t>(std::min(pause * spread, kLongest)));
}

}  // namespace flashbob::client
