// Names, sets and the shape of each tensor.
#include "kernels/tensor_name.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "kernels/dtype.h"

namespace flashbob {
namespace {

using enum TensorName;

TEST(TensorNameTest, EveryNameParsesToItself) {
  std::set<std::string> names;
  for (int i = 0; i < kNumTensorNames; ++i) {
    const auto name = static_cast<TensorName>(i);
    EXPECT_EQ(ParseTensorName(Name(name)), name);
    names.insert(Name(name));
  }
  EXPECT_EQ(names,
            (std::set<std::string>{"q",  "k",  "v",  "o",  "lse", "do", "uq",  "uk", "uv",   "tq",  "tk",  "tv", "tdo",
                                   "dq", "dk", "dv", "gq", "gk",  "gv", "gdo", "to", "tlse", "tdq", "tdk", "tdv"}));
  EXPECT_EQ(ParseTensorName("dlse"), std::nullopt);
  EXPECT_EQ(ParseTensorName("Q"), std::nullopt);
  EXPECT_EQ(ParseTensorName(""), std::nullopt);
}

TEST(TensorNameTest, CotangentsAndTangentsHaveTheShapeOfWhatTheyBelongTo) {
  const std::pair<TensorName, TensorName> pairs[] = {{kDo, kO}, {kUq, kQ},     {kUk, kK},  {kUv, kV},  {kTq, kQ},
                                                     {kTk, kK}, {kTv, kV},     {kTdo, kO}, {kDq, kQ},  {kDk, kK},
                                                     {kDv, kV}, {kGq, kQ},     {kGk, kK},  {kGv, kV},  {kGdo, kO},
                                                     {kTo, kO}, {kTlse, kLse}, {kTdq, kQ}, {kTdk, kK}, {kTdv, kV}};
  for (const auto& [name, like] : pairs) {
    EXPECT_EQ(IsQuerySide(name), IsQuerySide(like)) << Name(name);
    EXPECT_EQ(WidthOf(name), WidthOf(like)) << Name(name);
  }
  EXPECT_TRUE(IsQuerySide(kQ) && IsQuerySide(kO) && IsQuerySide(kLse));
  EXPECT_FALSE(IsQuerySide(kK) || IsQuerySide(kV));
  EXPECT_EQ(WidthOf(kQ), Width::kHeadDim);
  EXPECT_EQ(WidthOf(kK), Width::kHeadDim);
  EXPECT_EQ(WidthOf(kV), Width::kValueDim);
  EXPECT_EQ(WidthOf(kO), Width::kValueDim);
  EXPECT_EQ(WidthOf(kLse), Width::kNone);
}

TEST(TensorNameTest, OnlyWhatDependsOnAProbeHasItsAxis) {
  const TensorSet probed = {kUq, kUk, kUv, kTq, kTk, kTv, kTdo, kGq, kGk, kGv, kGdo, kTo, kTlse, kTdq, kTdk, kTdv};
  for (int i = 0; i < kNumTensorNames; ++i) {
    const auto name = static_cast<TensorName>(i);
    EXPECT_EQ(HasProbeAxis(name), probed.Has(name)) << Name(name);
  }
}

TEST(TensorSetTest, ComputesAsSetsDo) {
  const TensorSet a = {kQ, kK, kLse};
  const TensorSet b = {kK, kTdv};
  EXPECT_EQ(a | b, (TensorSet{kQ, kK, kLse, kTdv}));
  EXPECT_EQ(a & b, TensorSet{kK});
  EXPECT_EQ(a - b, (TensorSet{kQ, kLse}));
  EXPECT_TRUE(a.HasAny(b));
  EXPECT_FALSE(a.HasAny(TensorSet{kV}));
  EXPECT_TRUE(a.HasAll({kQ, kLse}));
  EXPECT_FALSE(a.HasAll(b));
  EXPECT_TRUE(TensorSet().empty());
  EXPECT_TRUE((a - a).empty());
  EXPECT_EQ(a.ToString(), "q, k, lse");
  EXPECT_EQ(TensorSet().ToString(), "none");
  TensorSet c = a;
  c.Remove(kK);
  c.Add(kV);
  EXPECT_EQ(c.ToString(), "q, v, lse");
}

TEST(DTypeTest, NamesSizesAndStatisticsTypes) {
  for (DType dtype : kAllDTypes) EXPECT_EQ(ParseDType(Name(dtype)), dtype);
  EXPECT_EQ(ParseDType("float32"), std::nullopt);
  EXPECT_EQ(SizeOf(DType::kBFloat16), 2u);
  EXPECT_EQ(SizeOf(DType::kFloat16), 2u);
  EXPECT_EQ(SizeOf(DType::kFloat32), 4u);
  EXPECT_EQ(SizeOf(DType::kFloat64), 8u);
  EXPECT_EQ(StatisticsDType(DType::kBFloat16), DType::kFloat32);
  EXPECT_EQ(StatisticsDType(DType::kFloat16), DType::kFloat32);
  EXPECT_EQ(StatisticsDType(DType::kFloat32), DType::kFloat32);
  EXPECT_EQ(StatisticsDType(DType::kFloat64), DType::kFloat64);
}

}  // namespace
}  // namespace flashbob
