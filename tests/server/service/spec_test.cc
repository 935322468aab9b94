#include "server/service/spec.h"

#include <gtest/gtest.h>

#include "tests/server/testing/compute_client.h"

namespace flashbob::server {
namespace {

TEST(SpecTest, Fp32IsIeeeUnlessTheSpecPermitsTf32) {
  v1::ComputeSpec spec = ForwardSpec(1, 8, 8);
  EXPECT_FALSE(ParseSpec(spec)->computation.problem().options().allow_tf32) << "where nothing is said";
  spec.mutable_problem()->set_fp32_precision(v1::FP32_PRECISION_IEEE);
  EXPECT_FALSE(ParseSpec(spec)->computation.problem().options().allow_tf32);
  spec.mutable_problem()->set_fp32_precision(v1::FP32_PRECISION_ALLOW_TF32);
  EXPECT_TRUE(ParseSpec(spec)->computation.problem().options().allow_tf32);
}

}  // namespace
}  // namespace flashbob::server
