#include "server/scheduler/rate_estimator.h"

namespace flashbob::server {
namespace {

// Below this the overhead of a run hides the rate.
constexpr Duration kShortest = std::chrono::milliseconds(2);
// What one more run leaves of the weight of the earlier ones.
constexpr double kFade = 0.9;

}  // namespace

RateEstimator::RateEstimator(double first_guess) : first_guess_(first_guess) {}

Duration RateEstimator::Estimate(const Computation& computation, double flops) const {
  const Rate& rate = rates_[IndexOf(computation)];
  const double per_second = rate.seconds > 0 ? rate.flops / rate.seconds : first_guess_;
  return FromSeconds(flops / per_second);
}

void RateEstimator::Observe(const Computation& computation, double flops, Duration took) {
  if (took < kShortest || flops <= 0) return;
  Rate& rate = rates_[IndexOf(computation)];
  rate.flops = rate.flops * kFade + flops;
  rate.seconds = rate.seconds * kFade + ToSeconds(took);
}

size_t RateEstimator::IndexOf(const Computation& computation) {
  return static_cast<size_t>(computation.operation()) * std::size(kAllDTypes) +
         static_cast<size_t>(computation.problem().dtype());
}

}  // namespace flashbob::server
