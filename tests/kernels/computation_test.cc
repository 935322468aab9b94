// Which inputs and outputs an operation takes and gives, and what math.md's table says it costs.
#include "kernels/computation.h"

#include <gtest/gtest.h>

#include "kernels/conformance/case.h"

namespace flashbob {
namespace {

using conformance::CaseSpec;
using conformance::MakeComputation;
using enum TensorName;

std::vector<TensorInfo> Infos(TensorSet names) {
  std::vector<TensorInfo> infos;
  names.ForEach([&](TensorName name) {
    const Shape shape = name == kLse ? Shape{1, 2, 8} : Shape{1, 2, 8, 4};
    infos.push_back({name, DType::kFloat32, shape});
  });
  return infos;
}

absl::StatusOr<Computation> Create(Operation operation, TensorSet inputs, TensorSet outputs = {}) {
  return Computation::Create(operation, {}, Infos(inputs), outputs);
}

void ExpectInvalid(const absl::StatusOr<Computation>& computation, const std::string& message) {
  ASSERT_FALSE(computation.ok());
  EXPECT_EQ(computation.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(computation.status().message()), message);
}

constexpr TensorSet kPrimals = {kQ, kK, kV};

TEST(ComputationTest, MissingInputIsNamed) {
  ExpectInvalid(Create(Operation::kForward, {kQ, kV}), "forward lacks input k");
  ExpectInvalid(Create(Operation::kBackward, kPrimals), "backward lacks input do");
  ExpectInvalid(Create(Operation::kDoubleBackward, {kQ, kUq}), "double_backward lacks input k, v, do");
  ExpectInvalid(Create(Operation::kJvp, {kK, kV}), "jvp lacks input q");
}

TEST(ComputationTest, ExtraInputIsNamedWithWhatIsTaken) {
  ExpectInvalid(Create(Operation::kForward, kPrimals | TensorSet{kDo}), "forward takes no input do; it takes q, k, v");
  ExpectInvalid(Create(Operation::kBackward, kPrimals | TensorSet{kDo, kUq}),
                "backward takes no input uq; it takes q, k, v, o, lse, do");
  ExpectInvalid(Create(Operation::kDoubleBackward, kPrimals | TensorSet{kDo, kTq}),
                "double_backward takes no input tq; it takes q, k, v, o, lse, do, uq, uk, uv");
  ExpectInvalid(Create(Operation::kJvp, kPrimals | TensorSet{kUv}),
                "jvp takes no input uv; it takes q, k, v, o, lse, do, tq, tk, tv, tdo");
}

TEST(ComputationTest, InputGivenTwiceIsRefused) {
  std::vector<TensorInfo> infos = Infos(kPrimals);
  infos.push_back(infos.front());
  ExpectInvalid(Computation::Create(Operation::kForward, {}, infos, {}), "input q is given twice");
}

TEST(ComputationTest, OAndLseGoTogether) {
  ExpectInvalid(Create(Operation::kBackward, kPrimals | TensorSet{kDo, kO}), "o and lse go together; only o is given");
  ExpectInvalid(Create(Operation::kBackward, kPrimals | TensorSet{kDo, kLse}),
                "o and lse go together; only lse is given");
  EXPECT_TRUE(Create(Operation::kBackward, kPrimals | TensorSet{kDo, kO, kLse}).ok());
}

TEST(ComputationTest, TangentOfDoNeedsDo) {
  ExpectInvalid(Create(Operation::kJvp, kPrimals | TensorSet{kTdo}), "tdo, the tangent of do, is given without do");
}

TEST(ComputationTest, OutputThatTheOperationDoesNotGiveIsNamed) {
  ExpectInvalid(Create(Operation::kForward, kPrimals, {kDq}), "forward of q, k, v gives no output dq; it gives o, lse");
  ExpectInvalid(Create(Operation::kJvp, kPrimals | TensorSet{kTq}, {kTo, kTdq}),
                "jvp of q, k, v, tq gives no output tdq; it gives to, tlse");
  EXPECT_TRUE(Create(Operation::kJvp, kPrimals | TensorSet{kTq, kDo}, {kTo, kTdq}).ok());
}

TEST(ComputationTest, NoOutputsMeansAllOfThem) {
  EXPECT_EQ(Create(Operation::kForward, kPrimals)->outputs(), (TensorSet{kO, kLse}));
  EXPECT_EQ(Create(Operation::kBackward, kPrimals | TensorSet{kDo})->outputs(), (TensorSet{kDq, kDk, kDv}));
  EXPECT_EQ(Create(Operation::kDoubleBackward, kPrimals | TensorSet{kDo})->outputs(), (TensorSet{kGq, kGk, kGv, kGdo}));
  EXPECT_EQ(Create(Operation::kJvp, kPrimals)->outputs(), (TensorSet{kTo, kTlse}));
  EXPECT_EQ(Create(Operation::kJvp, kPrimals | TensorSet{kDo})->outputs(), (TensorSet{kTo, kTlse, kTdq, kTdk, kTdv}));
  EXPECT_EQ(Create(Operation::kBackward, kPrimals | TensorSet{kDo}, {kDk})->outputs(), TensorSet{kDk});
}

TEST(ComputationTest, ProblemsRefusalIsPassedOn) {
  std::vector<TensorInfo> infos = Infos(kPrimals);
  for (TensorInfo& info : infos) info.shape[3] = 300;
  const auto computation = Computation::Create(Operation::kForward, {}, infos, {});
  EXPECT_EQ(computation.status().code(), absl::StatusCode::kUnimplemented);
}

TEST(ComputationTest, OperationNamesParseToThemselves) {
  for (Operation operation : kAllOperations) EXPECT_EQ(ParseOperation(Name(operation)), operation);
  EXPECT_EQ(ParseOperation("bob"), std::nullopt);
}

ProductCount Products(Operation operation, TensorSet optional_inputs, int64_t probes = 0) {
  CaseSpec spec;
  spec.operation = operation;
  spec.optional_inputs = optional_inputs;
  spec.options.probes = probes;
  spec.query_len = spec.key_len = 8;
  return MakeComputation(spec)->products();
}

void ExpectProducts(const ProductCount& count, int64_t over_head_dim, int64_t over_value_dim) {
  EXPECT_EQ(count.over_head_dim, over_head_dim);
  EXPECT_EQ(count.over_value_dim, over_value_dim);
}

constexpr TensorSet kForwardResults = {kO, kLse};
constexpr TensorSet kCotangents = {kUq, kUk, kUv};
constexpr TensorSet kTangents = {kTq, kTk, kTv};

TEST(ProductsTest, AreThoseOfTheTable) {
  ExpectProducts(Products(Operation::kForward, {}), 1, 1);
  ExpectProducts(Products(Operation::kBackward, kForwardResults), 3, 2);
  ExpectProducts(Products(Operation::kJvp, kForwardResults | kTangents), 3, 2);
  ExpectProducts(Products(Operation::kDoubleBackward, kForwardResults | kCotangents), 10, 5);
}

TEST(ProductsTest, ProbesShareScoresAndDP) {
  for (int64_t probes : {1, 2, 5}) {
    ExpectProducts(Products(Operation::kDoubleBackward, kForwardResults | kCotangents, probes), 8 * probes + 2,
                   4 * probes + 1);
    ExpectProducts(Products(Operation::kJvp, kForwardResults | kTangents, probes), 2 * probes + 1, 2 * probes);
  }
}

TEST(ProductsTest, RecomputedForwardCostsOneOfEach) {
  ExpectProducts(Products(Operation::kBackward, {}), 4, 3);
  ExpectProducts(Products(Operation::kJvp, kTangents), 4, 3);
  ExpectProducts(Products(Operation::kDoubleBackward, kCotangents), 11, 6);
}

TEST(ProductsTest, LeftOutCotangentsDropTheirProducts) {
  const auto bob = [](TensorSet given) { return Products(Operation::kDoubleBackward, kForwardResults | given); };
  ExpectProducts(bob({}), 0, 0);
  // Rows: S, uQ K^T; (P.G)V. Columns: S, uQ K^T, Y^T Q, Y K, Z^T uQ; dP, X^T dO.
  ExpectProducts(bob({kUq}), 7, 3);
  ExpectProducts(bob({kUk}), 7, 3);
  // Both of G, both of Z.
  ExpectProducts(bob({kUq, kUk}), 10, 3);
  // G and X are zero. Rows: S; P uV. Columns: S, Y^T Q, Y K; H.
  ExpectProducts(bob({kUv}), 4, 2);
  ExpectProducts(bob({kUq, kUv}), 7, 5);
  ExpectProducts(bob({kUk, kUv}), 7, 5);
}

TEST(ProductsTest, ForwardOverReverseAddsABackwardOfTdo) {
  const TensorSet all = kForwardResults | kTangents | TensorSet{kDo};
  ExpectProducts(Products(Operation::kJvp, all), 10, 5);
  // tdO V^T and P^T tdO; its dS shares the products of Y.
  ExpectProducts(Products(Operation::kJvp, all | TensorSet{kTdo}), 10, 7);
  ExpectProducts(Products(Operation::kJvp, kForwardResults | TensorSet{kDo, kTdo}), 3, 2);
  ExpectProducts(Products(Operation::kJvp, kForwardResults | TensorSet{kDo}), 0, 0);
}

TEST(CostTest, FlopsCountVisiblePairs) {
  CaseSpec spec;
  spec.operation = Operation::kDoubleBackward;
  spec.optional_inputs = kForwardResults | kCotangents;
  spec.batch = 3;
  spec.heads = 4;
  spec.kv_heads = 2;
  spec.query_len = spec.key_len = 10;
  spec.head_dim = 64;
  spec.value_dim = 32;
  EXPECT_EQ(MakeComputation(spec)->flops(), 2.0 * 3 * 4 * 100 * (10 * 64 + 5 * 32));
  spec.options.window_right = 0;
  EXPECT_EQ(MakeComputation(spec)->flops(), 2.0 * 3 * 4 * 55 * (10 * 64 + 5 * 32));
}

TEST(CostTest, BytesAreThoseOfTheTensors) {
  CaseSpec spec;
  spec.operation = Operation::kJvp;
  spec.dtype = DType::kBFloat16;
  spec.optional_inputs = {kO, kLse, kTq};
  spec.outputs = {kTlse};
  spec.heads = 4;
  spec.kv_heads = 2;
  spec.query_len = 10;
  spec.key_len = 6;
  spec.head_dim = 8;
  spec.value_dim = 5;
  spec.options.probes = 3;
  const absl::StatusOr<Computation> computation = MakeComputation(spec);
  ASSERT_TRUE(computation.ok());
  const int64_t q = 4 * 10 * 8 * 2;
  const int64_t k = 2 * 6 * 8 * 2;
  const int64_t v = 2 * 6 * 5 * 2;
  const int64_t o = 4 * 10 * 5 * 2;
  const int64_t lse = 4 * 10 * 4;
  EXPECT_EQ(computation->input_bytes(), q + k + v + o + lse + 3 * q);
  EXPECT_EQ(computation->output_bytes(), 3 * lse);
}

}  // namespace
}  // namespace flashbob
