#include "server/scheduler/rate_estimator.h"

#include <gtest/gtest.h>

namespace flashbob::server {
namespace {

using std::chrono::seconds;

Computation Of(Operation operation) {
  std::vector<TensorInfo> inputs;
  Computation::RequiredInputs(operation).ForEach([&](TensorName name) {
    inputs.push_back({name, DType::kFloat32, {1, 1, 8, 8}});
  });
  return *Computation::Create(operation, {}, inputs, {});
}

TEST(RateEstimatorTest, BelievesTheFirstGuessUntilSomethingRan) {
  RateEstimator rates(1e9);
  EXPECT_EQ(rates.Estimate(Of(Operation::kForward), 2e9), seconds(2));
  rates.Observe(Of(Operation::kForward), 1e9, seconds(10));
  EXPECT_EQ(rates.Estimate(Of(Operation::kForward), 2e9), seconds(20));
}

TEST(RateEstimatorTest, OneOperationSaysNothingOfAnother) {
  RateEstimator rates(1e9);
  rates.Observe(Of(Operation::kForward), 1e9, seconds(10));
  EXPECT_EQ(rates.Estimate(Of(Operation::kBackward), 2e9), seconds(2));
}

TEST(RateEstimatorTest, RunsTooShortToTellAreNoEvidence) {
  RateEstimator rates(1e9);
  rates.Observe(Of(Operation::kForward), 1, std::chrono::microseconds(50));
  rates.Observe(Of(Operation::kForward), 0, seconds(1));
  EXPECT_EQ(rates.Estimate(Of(Operation::kForward), 1e9), seconds(1));
}

TEST(RateEstimatorTest, FollowsARateThatChanges) {
  RateEstimator rates(1e9);
  for (int i = 0; i < 20; ++i) rates.Observe(Of(Operation::kForward), 1e9, seconds(1));
  for (int i = 0; i < 50; ++i) rates.Observe(Of(Operation::kForward), 2e9, seconds(1));
  EXPECT_NEAR(ToSeconds(rates.Estimate(Of(Operation::kForward), 2e9)), 1, 0.02);
}

}  // namespace
}  // namespace flashbob::server
