// CostModel: how long a part of a computation takes on a device, learned from the slices that ran there.
#ifndef FLASHBOB_SERVER_SCHEDULER_COST_MODEL_H_
#define FLASHBOB_SERVER_SCHEDULER_COST_MODEL_H_

#include <array>
#include <vector>

#include "kernels/computation.h"
#include "server/base/clock.h"

namespace flashbob::server {

// A rate, FLOPs over time with older slices fading, for each device, operation and bucket of shapes (dtype, head dim,
// length). A bucket that nothing ran in yet takes the rate of its operation and dtype, that takes the device's first
// guess. Not thread safe.
class CostModel {
 public:
  // In FLOPs per second, > 0, one a device.
  explicit CostModel(const std::vector<double>& first_guesses);

  Duration Estimate(size_t device, const Computation& computation, double flops) const;
  // The shortest over all devices.
  Duration Estimate(const Computation& computation, double flops) const;

  // How much of the time that a slice seems to have taken is believed. Over a second, and far over the estimate, it was
  // not the device that took it: the machine was suspended, the process stopped. Believed at once, an hour would have
  // every deadline refused, and what is refused never teaches better; a device that is really so slow is known after a
  // few slices all the same.
  Duration Credible(size_t device, const Computation& computation, double flops, Duration took) const;

  // A slice ran.
  void Observe(size_t device, const Computation& computation, double flops, Duration took);

 private:
  struct Rate {
    double flops = 0;
    double seconds = 0;
    void Add(double more_flops, double more_seconds);
  };
  static constexpr size_t kOperations = std::size(kAllOperations) * std::size(kAllDTypes);
  static constexpr size_t kHeadDims = 4;  // up to 32, 64, 128, 256
  static constexpr size_t kLengths = 10;  // of the shorter side: up to 16, 64, ... 4^9 x 16 tokens
  struct Device {
    double first_guess = 0;
    std::array<Rate, kOperations> of_operation;
    std::array<Rate, kOperations * kHeadDims * kLengths> of_shape;
  };
  static size_t OperationOf(const Computation& computation);
  static size_t ShapeOf(const Computation& computation);
  static size_t LengthOf(const AttentionProblem& problem);

  std::vector<Device> devices_;
};

}  // namespace flashbob::server

#endif  // FLASHBOB_SERVER_SCHEDULER_COST_MODEL_H_
