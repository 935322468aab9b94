// StepClock: a clock that stands still until it is told how far to go.
#ifndef FLASHBOB_TESTS_SERVER_TESTING_STEP_CLOCK_H_
#define FLASHBOB_TESTS_SERVER_TESTING_STEP_CLOCK_H_

#include <atomic>

#include "server/base/clock.h"

namespace flashbob::server {

// Thread safety: any thread.
class StepClock final : public Clock {
 public:
  TimePoint Now() const override { return TimePoint(Duration(now_.load())); }
  void Step(Duration duration) { now_ += duration.count(); }

 private:
  std::atomic<int64_t> now_ = std::chrono::nanoseconds(std::chrono::hours(1)).count();
};

}  // namespace flashbob::server

#endif  // FLASHBOB_TESTS_SERVER_TESTING_STEP_CLOCK_H_
