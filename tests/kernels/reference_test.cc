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
    const auto objective = [&, input = input, direction = direction](double step) {
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
    const auto objective = [&, input = input, direction = direction](double step) {
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

// Keys that query i sees, counted from the words of the options.
std::vector<int64_t> VisibleKeys(const ProblemOptions& options, int64_t queries, int64_t keys, int64_t i) {
  const int64_t diagonal = i + (options.alignment == Alignment::kBottomRight ? keys - queries : 0);
  std::vector<int64_t> visible;
  for (int64_t j = 0; j < keys; ++j) {
    if (options.window_left >= 0 && j < diagonal - options.window_left) continue;
    if (options.window_right >= 0 && j > diagonal + options.window_right) continue;
    visible.push_back(j);
  }
  return visible;
}

TEST(ReferenceTest, EqualScoresAverageTheVisibleValues) {
  const CaseSpec specs[] = {Spec(5, 9), Spec(8, 5, -1, 0), Spec(8, 5, -1, 0, Alignment::kBottomRight),
                            Spec(5, 8, 1, 2, Alignment::kBottomRight), Spec(9, 9, 0, 0)};
  for (const CaseSpec& spec : specs) {
    Elements inputs = InputsOf(MakeCase(spec));
    std::fill(inputs[kQ].begin(), inputs[kQ].end(), 0);
    const Elements forward = ReferenceOf(spec, Operation::kForward, {}, inputs);
    for (int64_t head = 0; head < spec.heads; ++head) {
      for (int64_t i = 0; i < spec.query_len; ++i) {
        const std::vector<int64_t> visible = VisibleKeys(spec.options, spec.query_len, spec.key_len, i);
        const auto count = static_cast<double>(visible.size());
        const auto row = static_cast<size_t>(head * spec.query_len + i);
        if (visible.empty()) {
          EXPECT_EQ(forward.at(kLse)[row], -kInfinity);
        } else {
          EXPECT_NEAR(forward.at(kLse)[row], std::log(count), 1e-14);
        }
        for (int64_t x = 0; x < spec.value_dim; ++x) {
          double sum = 0;
          for (int64_t j : visible) {
            sum += inputs[kV][static_cast<size_t>((head * spec.key_len + j) * spec.value_dim + x)];
          }
          EXPECT_NEAR(forward.at(kO)[row * static_cast<size_t>(spec.value_dim) + static_cast<size_t>(x)],
                      visible.empty() ? 0 : sum / count, 1e-14);
        }
      }
    }
  }
}

TEST(ReferenceTest, RowsWithoutKeysGiveZeroDerivatives) {
  const CaseSpec spec = Spec(8, 5, -1, 0, Alignment::kBottomRight);  // rows 0 to 2 see no key
  CaseSpec all = spec;
  all.operation = Operation::kJvp;
  all.optional_inputs = {kDo, kTq, kTk, kTv, kTdo};
  Elements inputs = InputsOf(MakeCase(all));
  inputs[kUq] = inputs[kTq];
  inputs[kUk] = inputs[kTk];
  inputs[kUv] = inputs[kTv];
  const std::pair<Operation, TensorSet> runs[] = {{Operation::kBackward, {}},
                                                  {Operation::kDoubleBackward, {kUq, kUk, kUv}},
                                                  {Operation::kJvp, all.optional_inputs}};
  for (const auto& [operation, given] : runs) {
    for (const auto& [name, values] : ReferenceOf(spec, operation, given, inputs)) {
      if (!IsQuerySide(name)) continue;
      const auto width = values.size() / 16;
      for (size_t row : {0, 1, 2, 8, 9, 10}) {
        for (size_t x = 0; x < width; ++x) EXPECT_EQ(values[row * width + x], 0) << Name(name) << " row " << row;
      }
      EXPECT_NE(values[4 * width], 0) << Name(name);  // the first row that sees two keys
    }
  }
}

TEST(ReferenceTest, GivenForwardResultsChangeNothing) {
  for (const CaseSpec& spec : {Spec(6, 6), Grouped(), Packed(), Spec(8, 5, -1, 0, Alignment::kBottomRight)}) {
    CaseSpec all = spec;
    all.operation = Operation::kJvp;
    all.optional_inputs = {kO, kLse, kDo, kTq, kTk, kTv, kTdo};
    const Elements inputs = InputsOf(MakeCase(all));
    const Elements given = ReferenceOf(spec, Operation::kJvp, all.optional_inputs, inputs);
    const Elements recomputed = ReferenceOf(spec, Operation::kJvp, {kDo, kTq, kTk, kTv, kTdo}, inputs);
    for (const auto& [name, values] : recomputed) EXPECT_LT(Distance(given.at(name), values), 1e-14) << Name(name);
  }
}

TEST(ReferenceTest, GivenForwardResultsAreUsed) {
  CaseSpec spec = Spec(6, 6);
  spec.operation = Operation::kBackward;
  spec.optional_inputs = {kO, kLse};
  Elements inputs = InputsOf(MakeCase(spec));
  const Elements before = ReferenceOf(spec, Operation::kBackward, spec.optional_inputs, inputs);
  for (double& x : inputs[kLse]) x += std::log(2);  // halves P
  const Elements halved = ReferenceOf(spec, Operation::kBackward, spec.optional_inputs, inputs);
  for (TensorName name : {kDq, kDk, kDv}) {
    std::vector<double> twice = halved.at(name);
    for (double& x : twice) x *= 2;
    EXPECT_LT(Distance(twice, before.at(name)), 1e-14) << Name(name);
  }
}

TEST(ReferenceTest, LeftOutCotangentsAreZeros) {
  const CaseSpec spec = Grouped();
  CaseSpec all = spec;
  all.operation = Operation::kDoubleBackward;
  all.optional_inputs = {kUq, kUk, kUv};
  const Elements inputs = InputsOf(MakeCase(all));
  for (TensorName left_out : {kUq, kUk, kUv}) {
    Elements zeroed = inputs;
    std::fill(zeroed[left_out].begin(), zeroed[left_out].end(), 0);
    EXPECT_EQ(ReferenceOf(spec, Operation::kDoubleBackward, all.optional_inputs - TensorSet{left_out}, inputs),
              ReferenceOf(spec, Operation::kDoubleBackward, all.optional_inputs, zeroed));
  }
  for (const auto& [name, values] : ReferenceOf(spec, Operation::kDoubleBackward, {}, inputs)) {
    for (double x : values) EXPECT_EQ(x, 0) << Name(name);
  }
}

// A tensor of [batch, heads, rows, width] as [batch, rows, heads, width].
std::vector<double> RowsFirst(const std::vector<double>& values, int64_t batch, int64_t heads, int64_t rows,
                              int64_t width) {
  std::vector<double> moved;
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t n = 0; n < rows; ++n) {
      for (int64_t h = 0; h < heads; ++h) {
        const auto begin = values.begin() + ((b * heads + h) * rows + n) * width;
        moved.insert(moved.end(), begin, begin + width);
      }
    }
  }
  return moved;
}

TEST(ReferenceTest, LayoutsHoldTheSameNumbers) {
  CaseSpec spec = Spec(5, 7, 3, 1);
  spec.batch = 2;
  spec.heads = 4;
  spec.operation = Operation::kJvp;
  spec.optional_inputs = {kO, kLse, kDo, kTq, kTk, kTv, kTdo};
  spec.options.probes = 0;
  const Elements inputs = InputsOf(MakeCase(spec));
  const auto moved = [&](const Elements& tensors) {
    Elements result;
    for (const auto& [name, values] : tensors) {
      const bool query_side = IsQuerySide(name);
      const int64_t width = WidthOf(name) == Width::kHeadDim ? spec.head_dim : spec.value_dim;
      result[name] = WidthOf(name) == Width::kNone
                         ? values
                         : RowsFirst(values, spec.batch, query_side ? spec.heads : spec.kv_heads,
                                     query_side ? spec.query_len : spec.key_len, width);
    }
    return result;
  };
  const Elements expected = moved(ReferenceOf(spec, Operation::kJvp, spec.optional_inputs, inputs));
  CaseSpec rows_first = spec;
  rows_first.options.layout = Layout::kBNHD;
  EXPECT_EQ(ReferenceOf(rows_first, Operation::kJvp, spec.optional_inputs, moved(inputs)), expected);

  // A packed batch of one sequence is the same memory, lse included.
  CaseSpec one = spec;
  one.batch = 1;
  const Elements one_inputs = InputsOf(MakeCase(one));
  const auto one_moved = [&](const Elements& tensors) {
    spec.batch = 1;
    return moved(tensors);
  };
  CaseSpec packed = one;
  packed.options.layout = Layout::kTHD;
  packed.options.cu_seqlens_q = {0, 5};
  packed.options.cu_seqlens_k = {0, 7};
  EXPECT_EQ(ReferenceOf(packed, Operation::kJvp, spec.optional_inputs, one_moved(one_inputs)),
            one_moved(ReferenceOf(one, Operation::kJvp, spec.optional_inputs, one_inputs)));
}

TEST(ReferenceTest, AbsoluteValuesScaleWhatCancels) {
  // One visible key: P = 1, so dq is 0 whatever the values; its terms are |tau| (|do| |v| + |do| |o|) |k|, o = v.
  CaseSpec spec = Spec(1, 1);
  spec.heads = spec.kv_heads = 1;
  spec.head_dim = spec.value_dim = 1;
  spec.options.scale = -2;
  spec.operation = Operation::kBackward;
  const Elements inputs = {{kQ, {0.5}}, {kK, {-3}}, {kV, {4}}, {kDo, {-5}}};
  const auto result = ComputeReference(MakeCase(spec).computation(), inputs);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->outputs.at(kDq).value[0], 0);
  EXPECT_DOUBLE_EQ(result->outputs.at(kDq).abs[0], 2 * (5 * 4 + 5 * 4) * 3);
  EXPECT_EQ(result->outputs.at(kDv).value[0], -5);
  EXPECT_EQ(result->outputs.at(kDv).abs[0], 5);
  EXPECT_EQ(result->max_abs_score, 3);
}

TEST(ReferenceTest, AbsoluteValuesAreNoLessThanTheValues) {
  for (const CaseSpec& spec : {Spec(6, 6), Grouped(), Packed()}) {
    for (Operation operation : kAllOperations) {
      CaseSpec all = spec;
      all.operation = operation;
      all.optional_inputs = Computation::AllowedInputs(operation) - TensorSet{kO, kLse};
      const ConformanceCase made = MakeCase(all);
      const auto result = ComputeReference(made.computation(), InputsOf(made));
      ASSERT_TRUE(result.ok()) << result.status();
      for (const auto& [name, tensor] : result->outputs) {
        for (size_t i = 0; i < tensor.value.size(); ++i) {
          if (std::isinf(tensor.value[i])) continue;
          ASSERT_GE(tensor.abs[i] * (1 + 1e-14), std::abs(tensor.value[i])) << Name(name);
        }
      }
    }
  }
}

TEST(ReferenceTest, RoundingCostsAboutAUnitOfTheDtype) {
  CaseSpec spec = Spec(64, 64);
  spec.head_dim = spec.value_dim = 32;
  spec.operation = Operation::kDoubleBackward;
  spec.optional_inputs = {kUq, kUk, kUv};
  const ConformanceCase made = MakeCase(spec);
  const Elements inputs = InputsOf(made);
  const auto exact = ComputeReference(made.computation(), inputs);
  for (const auto& [dtype, unit] : {std::pair{DType::kBFloat16, 0x1p-8}, std::pair{DType::kFloat16, 0x1p-11}}) {
    const auto rounded = ComputeReference(made.computation(), inputs, {dtype, 0});
    for (const auto& [name, tensor] : rounded->outputs) {
      const double error = Distance(tensor.value, exact->outputs.at(name).value);
      EXPECT_GT(error, 0.3 * unit) << Name(name);
      EXPECT_LT(error, 1.2 * unit) << Name(name);
    }
  }
}

TEST(ReferenceTest, ManyThreadsGiveTheBitsOfOne) {
  CaseSpec spec = Grouped();
  spec.operation = Operation::kDoubleBackward;
  spec.optional_inputs = {kUq, kUk, kUv};
  const ConformanceCase made = MakeCase(spec);
  const Elements inputs = InputsOf(made);
  const auto one = ComputeReference(made.computation(), inputs, {std::nullopt, 1});
  const auto many = ComputeReference(made.computation(), inputs, {std::nullopt, 5});
  for (const auto& [name, tensor] : one->outputs) EXPECT_EQ(tensor.value, many->outputs.at(name).value) << Name(name);
}

TEST(ReferenceTest, InputOfAnotherSizeIsRefusedWithTheNumbers) {
  const ConformanceCase made = MakeCase(Spec(3, 3));
  Elements inputs = InputsOf(made);
  inputs[kV].pop_back();
  EXPECT_EQ(ComputeReference(made.computation(), inputs).status(),
            absl::InvalidArgumentError("input v has 17 elements; the problem needs 18"));
  inputs.erase(kK);
  EXPECT_EQ(ComputeReference(made.computation(), inputs).status().message(), "the reference lacks input k");
}

}  // namespace
}  // namespace flashbob
