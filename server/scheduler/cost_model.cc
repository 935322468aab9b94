#include "server/scheduler/cost_model.h"

#include <algorithm>

namespace flashbob::server {
namespace {

// Below this the overhead of a slice hides the rate that larger shapes have.
constexpr Duration kShortest = std::chrono::milliseconds(2);
// What a slice should take, and from where on a time is doubted.
constexpr Duration kSlice = std::chrono::milliseconds(20);
constexpr Duration kDoubtful = std::chrono::seconds(1);
constexpr int kFarOver = 10;
// What one more slice leaves of the weight of the earlier ones.
constexpr double kFade = 0.9;

size_t BucketOf(int64_t value, int64_t first, int64_t factor, size_t buckets) {
  size_t bucket = 0;
  for (int64_t end = first; value > end && bucket + 1 < buckets; end *= factor) ++bucket;
  return bucket;
}

}  // namespace

CostModel::CostModel(const std::vector<double>& first_guesses) : devices_(first_guesses.size()) {
  for (size_t i = 0; i < devices_.size(); ++i) devices_[i].first_guess = first_guesses[i];
}

Duration CostModel::Estimate(size_t device, const Computation& computation, double flops) const {
  const Device& on = devices_[device];
  const Rate& of_shape = on.of_shape[ShapeOf(computation)];
  const Rate& of_operation = on.of_operation[OperationOf(computation)];
  const double per_second = of_shape.seconds > 0       ? of_shape.flops / of_shape.seconds
                            : of_operation.seconds > 0 ? of_operation.flops / of_operation.seconds
                                                       : on.first_guess;
  return FromSeconds(flops / per_second);
}

Duration CostModel::Estimate(const Computation& computation, double flops) const {
  Duration least = Estimate(0, computation, flops);
  for (size_t i = 1; i < devices_.size(); ++i) least = std::min(least, Estimate(i, computation, flops));
  return least;
}

Duration CostModel::Credible(size_t device, const Computation& computation, double flops, Duration took) const {
  if (took <= kDoubtful) return std::max(took, Duration(0));
  return std::min(took, kFarOver * std::max(Estimate(device, computation, flops), kSlice));
}

void CostModel::Observe(size_t device, const Computation& computation, double flops, Duration took) {
  if (took <= Duration(0) || flops <= 0) return;
  Device& on = devices_[device];
  on.of_shape[ShapeOf(computation)].Add(flops, ToSeconds(took));
  // Tiny sequences are all overhead: a million of one token must not teach what a long one costs, since a request that
  // is refused for its estimate never teaches better.
  if (took >= kShortest && LengthOf(computation.problem()) > 0)
    on.of_operation[OperationOf(computation)].Add(flops, ToSeconds(took));
}

void CostModel::Rate::Add(double more_flops, double more_seconds) {
  flops = flops * kFade + more_flops;
  seconds = seconds * kFade + more_seconds;
}

size_t CostModel::OperationOf(const Computation& computation) {
  return static_cast<size_t>(computation.operation()) * std::size(kAllDTypes) +
         static_cast<size_t>(computation.problem().dtype());
}

size_t CostModel::ShapeOf(const Computation& computation) {
  const AttentionProblem& problem = computation.problem();
  const size_t head_dim = BucketOf(std::max(problem.head_dim(), problem.value_dim()), 32, 2, kHeadDims);
  return (OperationOf(computation) * kHeadDims + head_dim) * kLengths + LengthOf(problem);
}

size_t CostModel::LengthOf(const AttentionProblem& problem) {
  // The shorter side decides how well tiles are filled.
  const int64_t shorter = std::min(problem.total_queries(), problem.total_keys());
  return BucketOf(shorter / std::max<int64_t>(problem.batch(), 1), 16, 4, kLengths);
}

}  // namespace flashbob::server
