// Clock: where the server reads the time, so that tests step it by hand.
#ifndef FLASHBOB_SERVER_BASE_CLOCK_H_
#define FLASHBOB_SERVER_BASE_CLOCK_H_

#include <chrono>

namespace flashbob::server {

using Duration = std::chrono::nanoseconds;
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;

// A deadline that never comes.
inline constexpr TimePoint kNoDeadline = TimePoint::max();

inline constexpr double ToSeconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

// Cut to +-10 days, so that sums over thousands of estimates, of any size, fit.
inline constexpr Duration FromSeconds(double seconds) {
  constexpr double kLongest = 10.0 * 24 * 3600;
  const double cut = seconds < -kLongest ? -kLongest : seconds > kLongest ? kLongest : seconds;
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(cut));
}

// Thread safety: any thread.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint Now() const = 0;
};

class SteadyClock final : public Clock {
 public:
  TimePoint Now() const override { return std::chrono::steady_clock::now(); }
};

}  // namespace flashbob::server

#endif  // FLASHBOB_SERVER_BASE_CLOCK_H_
