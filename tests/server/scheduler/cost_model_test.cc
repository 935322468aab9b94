#include "server/scheduler/cost_model.h"

#include <gtest/gtest.h>

namespace flashbob::server {
namespace {

using std::chrono::hours;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

Computation Of(Operation operation, int64_t length = 8) {
  std::vector<TensorInfo> inputs;
  Computation::RequiredInputs(operation).ForEach([&](TensorName name) {
    inputs.push_back({name, DType::kFloat32, {1, 1, length, 8}});
  });
  return *Computation::Create(operation, {}, inputs, {});
}

TEST(CostModelTest, BelievesTheFirstGuessUntilSomethingRan) {
  CostModel costs({1e9});
  EXPECT_EQ(costs.Estimate(0, Of(Operation::kForward), 2e9), seconds(2));
  costs.Observe(0, Of(Operation::kForward), 1e9, seconds(10));
  EXPECT_EQ(costs.Estimate(0, Of(Operation::kForward), 2e9), seconds(20));
}

TEST(CostModelTest, OneOperationSaysNothingOfAnother) {
  CostModel costs({1e9});
  costs.Observe(0, Of(Operation::kForward), 1e9, seconds(10));
  EXPECT_EQ(costs.Estimate(0, Of(Operation::kBackward), 2e9), seconds(2));
}

TEST(CostModelTest, OneDeviceSaysNothingOfAnother) {
  CostModel costs({1e9, 2e9});
  costs.Observe(0, Of(Operation::kForward), 1e9, seconds(10));
  EXPECT_EQ(costs.Estimate(1, Of(Operation::kForward), 2e9), seconds(1));
  EXPECT_EQ(costs.Estimate(Of(Operation::kForward), 2e9), seconds(1)) << "the better device";
}

TEST(CostModelTest, UnseenShapeTakesTheRateOfItsOperation) {
  CostModel costs({1e9});
  costs.Observe(0, Of(Operation::kForward, 512), 1e9, seconds(10));
  EXPECT_EQ(costs.Estimate(0, Of(Operation::kForward, 5000), 1e9), seconds(10));
}

TEST(CostModelTest, ShapesOfOtherLengthsKeepRatesOfTheirOwn) {
  CostModel costs({1e9});
  costs.Observe(0, Of(Operation::kForward, 8), 1e9, seconds(10));
  costs.Observe(0, Of(Operation::kForward, 5000), 1e9, seconds(1));
  EXPECT_EQ(costs.Estimate(0, Of(Operation::kForward, 8), 1e9), seconds(10));
  EXPECT_EQ(costs.Estimate(0, Of(Operation::kForward, 5000), 1e9), seconds(1));
}

TEST(CostModelTest, ShortSlicesSayNothingOfOtherShapes) {
  CostModel costs({1e9});
  costs.Observe(0, Of(Operation::kForward, 8), 50, microseconds(50));
  EXPECT_EQ(costs.Estimate(0, Of(Operation::kForward, 8), 100), microseconds(100));
  EXPECT_EQ(costs.Estimate(0, Of(Operation::kForward, 5000), 1e9), seconds(1));
}

TEST(CostModelTest, TinySequencesSayNothingOfLongOnes) {
  CostModel costs({1e9});
  costs.Observe(0, Of(Operation::kForward, 1), 1e6, seconds(10));
  EXPECT_EQ(costs.Estimate(0, Of(Operation::kForward, 1), 1e6), seconds(10));
  EXPECT_EQ(costs.Estimate(0, Of(Operation::kForward, 64), 1e9), seconds(1));
  EXPECT_EQ(costs.Estimate(0, Of(Operation::kForward, 5000), 1e9), seconds(1));
}

TEST(CostModelTest, SlicesWithoutWorkAreNoEvidence) {
  CostModel costs({1e9});
  costs.Observe(0, Of(Operation::kForward), 0, seconds(1));
  costs.Observe(0, Of(Operation::kForward), 1e9, seconds(0));
  EXPECT_EQ(costs.Estimate(0, Of(Operation::kForward), 1e9), seconds(1));
}

TEST(CostModelTest, TimeThatNoSliceTakesIsNotBelieved) {
  CostModel costs({1e9});
  const Computation computation = Of(Operation::kForward);
  EXPECT_EQ(costs.Credible(0, computation, 1e7, milliseconds(900)), milliseconds(900));
  EXPECT_EQ(costs.Credible(0, computation, 1e8, milliseconds(900)), milliseconds(900));
  EXPECT_EQ(costs.Credible(0, computation, 1e8, hours(1)), seconds(1)) << "ten times the estimate";
  EXPECT_EQ(costs.Credible(0, computation, 1, hours(1)), milliseconds(200)) << "ten times what a slice should take";
  EXPECT_EQ(costs.Credible(0, computation, 1e9, -hours(1)), seconds(0));
}

TEST(CostModelTest, DeviceThatIsAThousandTimesSlowerThanGuessedIsKnownAfterAFewSlices) {
  CostModel costs({1e12});
  const Computation computation = Of(Operation::kForward);
  for (int i = 0; i < 5; ++i) costs.Observe(0, computation, 2e10, costs.Credible(0, computation, 2e10, seconds(20)));
  EXPECT_GT(costs.Estimate(0, computation, 2e10), seconds(5));
}

TEST(CostModelTest, FollowsARateThatChanges) {
  CostModel costs({1e9});
  for (int i = 0; i < 20; ++i) costs.Observe(0, Of(Operation::kForward), 1e9, seconds(1));
  for (int i = 0; i < 50; ++i) costs.Observe(0, Of(Operation::kForward), 2e9, seconds(1));
  EXPECT_NEAR(ToSeconds(costs.Estimate(0, Of(Operation::kForward), 2e9)), 1, 0.02);
}

}  // namespace
}  // namespace flashbob::server
