// The fp64 reference against central differences of itself, against sums that can be done by hand, and its corners.
#include "kernels/reference/reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "kernels/conformance/case.h"

namespace flashbob {
namespace {

using conformance::CaseSpec;
using conformance::ConformanceCase;
using conformance::MakeInputs;
using enum TensorName;

using Elements = std::map<TensorName, std::vector<double>>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

ConformanceCase MakeCase(const CaseSpec& spec) {
  absl::StatusOr<ConformanceCase> made = ConformanceCase::Create(spec);
  EXPECT_TRUE(made.ok()) << made.status();
  return *std::move(made);
}

Elements InputsOf(const ConformanceCase& conformance_case) {
  absl::StatusOr<Elements> inputs = MakeInputs(conformance_case);
  EXPECT_TRUE(inputs.ok()) << inputs.status();
  return *std::move(inputs);
}

// The values of an operation's outputs on a spec's problem.
Elements ReferenceOf(CaseSpec spec, Operation operation, TensorSet optional_inputs, const Elements& inputs) {
  spec.operation = operation;
  spec.optional_inputs = optional_inputs;
  const ConformanceCase made = MakeCase(spec);
  absl::StatusOr<ReferenceResult> result = ComputeReference(made.computation(), inputs);
  EXPECT_TRUE(result.ok()) << result.status();
  Elements values;
  for (auto& [name, tensor] : result->outputs) values[name] = std::move(tensor.value);
  return values;
}

// inputs[x] + step * directions[y] for each pair (x, y).
Elements Moved(Elements inputs, const Elements& directions, double step,
               const std::vector<std::pair<TensorName, TensorName>>& pairs) {
  for (const auto& [input, direction] : pairs) {
    for (size_t i = 0; i < inputs[input].size(); ++i) inputs[input][i] += step * directions.at(direction)[i];
  }
  return inputs;
}

double Dot(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// ||a - b|| / max(1, ||b||); infinite values must be equal.
double Distance(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isinf(a[i]) && a[i] == b[i]) continue;
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference) / std::max(1.0, std::sqrt(norm));
}

// Central differences of step h have an error of h^2 and of the rounding over h: about 1e-10.
constexpr double kStep = 1e-5;
constexpr double kTolerance = 1e-8;

Elements CentralDifference(const Elements& plus, const Elements& minus) {
  Elements differences;
  for (const auto& [name, values] : plus) {
    std::vector<double>& difference = differences[name];
    for (size_t i = 0; i < values.size(); ++i) {
      const bool both_empty = std::isinf(values[i]) && values[i] == minus.at(name)[i];  // lse of a row without keys
      difference.push_back(both_empty ? 0 : (values[i] - minus.at(name)[i]) / (2 * kStep));
    }
  }
  return differences;
}

struct Named {
  const char* name;
  CaseSpec spec;
};

std::ostream& operator<<(std::ostream& out, const Named& named) { return out << named.name; }

CaseSpec Spec(int64_t queries, int64_t keys, int64_t left = -1, int64_t right = -1,
              Alignment alignment = Alignment::kTopLeft) {
  CaseSpec spec;
  spec.dtype = DType::kFloat64;
  spec.query_len = queries;
  spec.key_len = keys;
  spec.heads = 2;
  spec.kv_heads = 2;
  spec.head_dim = 4;
  spec.value_dim = 3;
  spec.options.window_left = left;
  spec.options.window_right = right;
  spec.options.alignment = alignment;
  spec.seed = 1;
  return spec;
}

CaseSpec Grouped() {
  CaseSpec spec = Spec(5, 7, -1, 0, Alignment::kBottomRight);
  spec.batch = 2;
  spec.heads = 6;
  spec.options.layout = Layout::kBNHD;
  spec.options.scale = -0.7;
  return spec;
}

CaseSpec Packed() {
  CaseSpec spec = Spec(0, 0, 2, 1, Alignment::kBottomRight);
  spec.options.layout = Layout::kTHD;
  spec.options.cu_seqlens_q = {0, 3, 3, 9, 11};
  spec.options.cu_seqlens_k = {0, 5, 6, 10, 10};
  return spec;
}

class CentralDifferences : public testing::TestWithParam<Named> {
 protected:
  // All tensors that any operation takes, for one problem.
  Elements Draw() const {
    CaseSpec spec = GetParam().spec;
    spec.operation = Operation::kJvp;
    spec.optional_inputs = {kDo, kTq, kTk, kTv, kTdo};
    return InputsOf(MakeCase(spec));
  }
};

TEST_P(CentralDifferences, JvpIsTheDerivativeOfForward) {
  const Elements inputs = Draw();
  const std::vector<std::pair<TensorName, TensorName>> pairs = {{kQ, kTq}, {kK, kTk}, {kV, kTv}};
  const auto forward = [&](double step) {
    return ReferenceOf(GetParam().spec, Operation::kForward, {}, Moved(inputs, inputs, step, pairs));
  };
  const Elements numeric = CentralDifference(forward(kStep), forward(-kStep));
  const Elements jvp = ReferenceOf(GetParam().spec, Operation::kJvp, {kTq, kTk, kTv}, inputs);
  EXPECT_LT(Distance(jvp.at(kTo), numeric.at(kO)), kTolerance);
  EXPECT_LT(Distance(jvp.at(kTlse), numeric.at(kLse)), kTolerance);
}

TEST_P(CentralDifferences, BackwardIsTheGradientOfForward) {
  const Elements inputs = Draw();
  const Elements gradient = ReferenceOf(GetParam().spec, Operation::kBackward, {}, inputs);
  const std::vector<std::array<TensorName, 3>> triples = {{kQ, kTq, kDq}, {kK, kTk, kDk}, {kV, kTv, kDv}};
  for (const auto& [input, direction, output] : triples) {
    const auto objective = [&](double step) {
      const Elements moved = Moved(inputs, inputs, step, {{input, direction}});
      return Dot(inputs.at(kDo), ReferenceOf(GetParam().spec, Operation::kForward, {}, moved).at(kO));
    };
    const double numeric = (objective(kStep) - objective(-kStep)) / (2 * kStep);
    EXPECT_NEAR(Dot(gradient.at(output), inputs.at(direction)), numeric, kTolerance * (1 + std::abs(numeric)))
        << Name(output);
  }
}

TEST_P(CentralDifferences, DoubleBackwardIsTheGradientOfBackward) {
  Elements inputs = Draw();
  // Cotangents have the shapes of tangents; those of another seed are independent of them.
  CaseSpec other = GetParam().spec;
  other.operation = Operation::kDoubleBackward;
  other.optional_inputs = {kUq, kUk, kUv};
  other.seed = 2;
  Elements cotangents = InputsOf(MakeCase(other));
  for (TensorName name : {kUq, kUk, kUv}) inputs[name] = std::move(cotangents[name]);

  const Elements gradient = ReferenceOf(GetParam().spec, Operation::kDoubleBackward, other.optional_inputs, inputs);
  const std::vector<std::array<TensorName, 3>> triples = {
      {kQ, kTq, kGq}, {kK, kTk, kGk}, {kV, kTv, kGv}, {kDo, kTdo, kGdo}};
  for (const auto& [input, direction, output] : triples) {
    const auto objective = [&](double step) {
      const Elements moved = Moved(inputs, inputs, step, {{input, direction}});
      const Elements backward = ReferenceOf(GetParam().spec, Operation::kBackward, {}, moved);
      return Dot(inputs.at(kUq), backward.at(kDq)) + Dot(inputs.at(kUk), backward.at(kDk)) +
             Dot(inputs.at(kUv), backward.at(kDv));
    };
    const double numeric = (objective(kStep) - objective(-kStep)) / (2 * kStep);
    EXPECT_NEAR(Dot(gradient.at(output), inputs.at(direction)), numeric, kTolerance * (1 + std::abs(numeric)))
        << Name(output);
  }
}

TEST_P(CentralDifferences, JvpWithDoIsTheDerivativeOfBackward) {
  const Elements inputs = Draw();
  const std::vector<std::pair<TensorName, TensorName>> primal_pairs = {{kQ, kTq}, {kK, kTk}, {kV, kTv}};
  for (bool move_do : {false, true}) {
    auto pairs = primal_pairs;
    if (move_do) pairs.push_back({kDo, kTdo});
    const auto backward = [&](double step) {
      return ReferenceOf(GetParam().spec, Operation::kBackward, {}, Moved(inputs, inputs, step, pairs));
    };
    const Elements numeric = CentralDifference(backward(kStep), backward(-kStep));
    TensorSet given = {kDo, kTq, kTk, kTv};
    if (move_do) given.Add(kTdo);
    const Elements jvp = ReferenceOf(GetParam().spec, Operation::kJvp, given, inputs);
    EXPECT_LT(Distance(jvp.at(kTdq), numeric.at(kDq)), kTolerance) << "tdo given: " << move_do;
    EXPECT_LT(Distance(jvp.at(kTdk), numeric.at(kDk)), kTolerance) << "tdo given: " << move_do;
    EXPECT_LT(Distance(jvp.at(kTdv), numeric.at(kDv)), kTolerance) << "tdo given: " << move_do;
  }
}

INSTANTIATE_TEST_SUITE_P(Problems, CentralDifferences,
                         testing::Values(Named{"square", Spec(6, 6)}, Named{"rectangular", Spec(5, 9)},
                                         Named{"causal_top_left", Spec(5, 8, -1, 0)},
                                         Named{"causal_tall_top_left", Spec(8, 5, -1, 0)},
                                         Named{"causal_bottom_right", Spec(5, 8, -1, 0, Alignment::kBottomRight)},
                                         Named{"empty_rows", Spec(8, 5, -1, 0, Alignment::kBottomRight)},
                                         Named{"window", Spec(9, 9, 2, 1)}, Named{"left_only", Spec(7, 7, 2, -1)},
                                         Named{"grouped", Grouped()}, Named{"packed", Packed()}),
                         [](const testing::TestParamInfo<Named>& named) { return named.param.name; });

}  // namespace
}  // namespace flashbob
