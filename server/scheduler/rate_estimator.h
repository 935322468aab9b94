// RateEstimator: how long a computation will take, learned from those that ran.
#ifndef FLASHBOB_SERVER_SCHEDULER_RATE_ESTIMATOR_H_
#define FLASHBOB_SERVER_SCHEDULER_RATE_ESTIMATOR_H_

#include <array>

#include "kernels/computation.h"
#include "server/base/clock.h"

namespace flashbob::server {

// One rate for each operation and dtype, as FLOPs over time with older runs fading. Not thread safe.
class RateEstimator {
 public:
  // `first_guess` in FLOPs per second, > 0, holds until something ran.
  explicit RateEstimator(double first_guess);

  Duration Estimate(const Computation& computation, double flops) const;

  // A computation ran. Runs too short to say anything about the rate are passed over.
  void Observe(const Computation& computation, double flops, Duration took);

 private:
  struct Rate {
    double flops = 0;
    double seconds = 0;
  };
  static size_t IndexOf(const Computation& computation);

  const double first_guess_;
  std::array<Rate, std::size(kAllOperations) * std::size(kAllDTypes)> rates_;
};

}  // namespace flashbob::server

#endif  // FLASHBOB_SERVER_SCHEDULER_RATE_ESTIMATOR_H_
