// math.md, "Identities worth a test": each holds for any input, so each is checked on fresh random problems.
//
// Inputs are multiples of 1/16 within +-4, so that the sums that identities make of them are exact in every dtype. Two
// results that are equal in exact arithmetic may differ by twice the error that one may have.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/conformance/case.h"
#include "kernels/conformance/error.h"
#include "kernels/conformance/host_tensor.h"
#include "kernels/reference/reference.h"
#include "tests/kernels/engines_under_test.h"
#include "tests/seed.h"

namespace flashbob {
namespace {

using conformance::CaseSpec;
using conformance::ConformanceCase;
using conformance::HostTensor;
using conformance::MakeComputation;
using conformance::RelativeError;
using enum TensorName;

using Elements = std::map<TensorName, std::vector<double>>;

// Of each identity: six of them, more than 200 problems a run and engine.
constexpr int kProblems = 40;

constexpr TensorSet kCotangents = {kUq, kUk, kUv};
constexpr TensorSet kTangents = {kTq, kTk, kTv};

// An engine's outputs, and from the reference what their errors are measured against.
struct Outcome {
  Elements values;
  Elements abs;
  double tolerance = 0;
};

double ErrorOf(DType dtype, double max_abs_score) {
  const double factor = std::max(1.0, max_abs_score / 4);
  switch (dtype) {
    case DType::kBFloat16:
      return 0x1p-7;  // twice the unit roundoff: outputs may be of one element
    case DType::kFloat16:
      return 0x1p-10;
    case DType::kFloat32:
      return 2e-6 * factor;
    case DType::kFloat64:
      return 1e-12 * factor;
  }
  return 0;
}

std::vector<double> Combine(double a, const std::vector<double>& x, double b, const std::vector<double>& y) {
  std::vector<double> sum(x.size());
  for (size_t i = 0; i < x.size(); ++i) sum[i] = a * x[i] + b * y[i];
  return sum;
}

class IdentitiesTest : public testing::TestWithParam<EngineUnderTest> {
 protected:
  int64_t Draw(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(generator_); }

  CaseSpec DrawProblem() {
    CaseSpec spec;
    spec.dtype = kAllDTypes[Draw(0, 3)];
    spec.batch = Draw(1, 2);
    spec.kv_heads = Draw(1, 3);
    spec.heads = spec.kv_heads * Draw(1, 3);
    const int64_t longest = Draw(0, 9) == 0 ? 150 : 40;  // now and then more than one tile
    spec.query_len = Draw(1, longest);
    spec.key_len = Draw(1, longest);
    // Multiples of 8 are what tensor-core kernels take.
    const int64_t step = Draw(0, 1) == 0 ? 1 : 8;
    spec.head_dim = step * Draw(1, 24 / step);
    spec.value_dim = step * Draw(1, 24 / step);
    spec.options.window_left = Draw(0, 2) == 0 ? Draw(0, longest) : -1;
    spec.options.window_right = Draw(0, 1) == 0 ? Draw(0, longest / 2) : -1;
    spec.options.alignment = Draw(0, 1) == 0 ? Alignment::kTopLeft : Alignment::kBottomRight;
    if (Draw(0, 1) == 0) spec.options.scale = static_cast<double>(Draw(-8, 8)) / 16;
    spec.options.probes = Draw(0, 1) == 0 ? 0 : Draw(1, 3);
    switch (Draw(0, 2)) {
      case 0:
        break;
      case 1:
        spec.options.layout = Layout::kBNHD;
        break;
      case 2:
        spec.options.layout = Layout::kTHD;
        spec.options.cu_seqlens_q = spec.options.cu_seqlens_k = {0};
        for (int64_t sequences = Draw(1, 4); sequences > 0; --sequences) {
          spec.options.cu_seqlens_q.push_back(spec.options.cu_seqlens_q.back() + Draw(0, longest / 2));
          spec.options.cu_seqlens_k.push_back(spec.options.cu_seqlens_k.back() + Draw(0, longest / 2));
        }
        break;
    }
    spec.seed = generator_();
    return spec;
  }

  // A tensor of a problem, multiples of 1/16.
  std::vector<double> DrawTensor(const AttentionProblem& problem, TensorName name) {
    std::normal_distribution<double> normal(0, 16);
    std::vector<double> values(static_cast<size_t>(problem.NumElements(name)));
    for (double& x : values) x = std::clamp(std::round(normal(generator_)), -64.0, 64.0) / 16;
    return values;
  }

  // Every tensor that any operation takes but o and lse.
  Elements DrawTensors(const CaseSpec& spec) {
    const Computation computation = Of(spec, Operation::kForward, {});
    Elements tensors;
    for (TensorName name : {kQ, kK, kV, kDo, kUq, kUk, kUv, kTq, kTk, kTv, kTdo}) {
      tensors[name] = DrawTensor(computation.problem(), name);
    }
    return tensors;
  }

  static Computation Of(CaseSpec spec, Operation operation, TensorSet given) {
    spec.operation = operation;
    spec.optional_inputs = given;
    absl::StatusOr<Computation> computation = MakeComputation(spec);
    EXPECT_TRUE(computation.ok()) << computation.status();
    return *std::move(computation);
  }

  Outcome Run(const CaseSpec& spec, Operation operation, TensorSet given, const Elements& inputs) {
    const Computation computation = Of(spec, operation, given);
    const AttentionProblem& problem = computation.problem();
    TensorPointers pointers;
    std::map<TensorName, HostTensor> tensors;
    computation.inputs().ForEach([&](TensorName name) {
      pointers.Set(name, tensors.try_emplace(name, problem.DTypeOf(name), inputs.at(name)).first->second.data());
    });
    computation.outputs().ForEach([&](TensorName name) {
      const auto elements = static_cast<size_t>(problem.NumElements(name));
      pointers.Set(name, tensors.try_emplace(name, problem.DTypeOf(name), elements).first->second.data());
    });
    const absl::Status status = runner_(computation, pointers);
    EXPECT_TRUE(status.ok()) << status;
    absl::StatusOr<ReferenceResult> reference = ComputeReference(computation, inputs);
    EXPECT_TRUE(reference.ok()) << reference.status();
    Outcome outcome;
    computation.outputs().ForEach([&](TensorName name) {
      outcome.values[name] = tensors.at(name).Values();
      outcome.abs[name] = std::move(reference->outputs.at(name).abs);
    });
    outcome.tolerance = 2 * ErrorOf(problem.dtype(), reference->max_abs_score);
    return outcome;
  }

  // That `got` is `expected` but for rounding.
  static void ExpectSame(const std::vector<double>& got, const std::vector<double>& expected, TensorName name,
                         const Outcome& scale, DType dtype) {
    const DType type = WidthOf(name) == Width::kNone ? StatisticsDType(dtype) : dtype;
    EXPECT_LE(RelativeError(got, {expected, scale.abs.at(name)}, type), scale.tolerance) << Name(name);
  }

  // A sum of products of inputs and outputs, and what an error in it is measured against: as of outputs, the larger of
  // the terms and a hundredth of what their terms are.
  struct Sum {
    double value = 0;
    double terms = 0;
    double abs = 0;

    void Add(const std::vector<double>& input, const Outcome& outcome, TensorName output) {
      const std::vector<double>& values = outcome.values.at(output);
      ASSERT_EQ(input.size(), values.size());
      for (size_t i = 0; i < input.size(); ++i) {
        value += input[i] * values[i];
        terms += std::abs(input[i] * values[i]);
        abs += std::abs(input[i]) * outcome.abs.at(output)[i];
      }
    }
    double scale() const { return std::max(terms, 0.01 * abs); }
  };

  // That two such sums are the same but for rounding.
  static void ExpectSame(const Sum& a, const Sum& b, double tolerance) {
    EXPECT_LE(std::abs(a.value - b.value), tolerance * std::max(a.scale(), b.scale())) << a.value << " and " << b.value;
  }

  static std::string Describe(const CaseSpec& spec) { return Of(spec, Operation::kForward, {}).problem().ToString(); }

  std::mt19937_64 generator_{testing_seed::Seed()};
  conformance::Runner runner_ = GetParam().make_runner();
};

TEST_P(IdentitiesTest, JvpIsTheAdjointOfBackward) {
  for (int i = 0; i < kProblems; ++i) {
    CaseSpec spec = DrawProblem();
    spec.options.probes = 0;
    SCOPED_TRACE(Describe(spec));
    const Elements inputs = DrawTensors(spec);
    const Outcome jvp = Run(spec, Operation::kJvp, kTangents, inputs);
    const Outcome backward = Run(spec, Operation::kBackward, {}, inputs);
    Sum along_tangent;
    along_tangent.Add(inputs.at(kDo), jvp, kTo);
    Sum along_cotangent;
    along_cotangent.Add(inputs.at(kTq), backward, kDq);
    along_cotangent.Add(inputs.at(kTk), backward, kDk);
    along_cotangent.Add(inputs.at(kTv), backward, kDv);
    ExpectSame(along_tangent, along_cotangent, jvp.tolerance);
  }
}

TEST_P(IdentitiesTest, DoubleBackwardIsSymmetric) {
  for (int i = 0; i < kProblems; ++i) {
    const CaseSpec spec = DrawProblem();
    SCOPED_TRACE(Describe(spec));
    const Elements inputs = DrawTensors(spec);
    Elements other = inputs;
    for (const auto& [u, t] : {std::pair{kUq, kTq}, {kUk, kTk}, {kUv, kTv}}) other[u] = inputs.at(t);
    const Outcome of_u = Run(spec, Operation::kDoubleBackward, kCotangents, inputs);
    const Outcome of_other = Run(spec, Operation::kDoubleBackward, kCotangents, other);
    Sum one;
    Sum two;
    for (const auto& [u, g] : {std::pair{kUq, kGq}, {kUk, kGk}, {kUv, kGv}}) {
      one.Add(other.at(u), of_u, g);
      two.Add(inputs.at(u), of_other, g);
    }
    ExpectSame(one, two, of_u.tolerance);
  }
}

TEST_P(IdentitiesTest, DoubleBackwardIsLinear) {
  for (int i = 0; i < kProblems; ++i) {
    const CaseSpec spec = DrawProblem();
    SCOPED_TRACE(Describe(spec));
    const Elements inputs = DrawTensors(spec);
    const Outcome first = Run(spec, Operation::kDoubleBackward, kCotangents, inputs);
    const std::vector<TensorSet> varied = {kCotangents, {kDo}};
    for (const TensorSet& names : varied) {
      Elements second_inputs = inputs;
      Elements sum_inputs = inputs;
      names.ForEach([&](TensorName name) {
        for (double& x : second_inputs[name]) x = static_cast<double>(Draw(-64, 64)) / 16;
        sum_inputs[name] = Combine(2, inputs.at(name), 1, second_inputs[name]);
      });
      const Outcome second = Run(spec, Operation::kDoubleBackward, kCotangents, second_inputs);
      const Outcome sum = Run(spec, Operation::kDoubleBackward, kCotangents, sum_inputs);
      for (const auto& [name, values] : sum.values) {
        const bool independent = names.Has(kDo) && name == kGdo;
        const std::vector<double> expected =
            independent ? first.values.at(name) : Combine(2, first.values.at(name), 1, second.values.at(name));
        // Two terms, each with its error, which may be larger than their sum.
        Outcome scale = sum;
        scale.abs[name] = Combine(4, first.abs.at(name), 2, second.abs.at(name));
        scale.tolerance *= 4;
        ExpectSame(values, expected, name, scale, spec.dtype);
      }
    }
  }
}

TEST_P(IdentitiesTest, VectorAddedToAllKeysOfAHeadChangesOnlyLse) {
  for (int i = 0; i < kProblems; ++i) {
    const CaseSpec spec = DrawProblem();
    SCOPED_TRACE(Describe(spec));
    Elements inputs = DrawTensors(spec);
    const Computation computation = Of(spec, Operation::kForward, {});
    const AttentionProblem& problem = computation.problem();
    const Strides strides = problem.StridesOf(kK);
    Elements moved = inputs;
    for (int64_t b = 0; b < problem.batch(); ++b) {
      for (int64_t head = 0; head < problem.kv_heads(); ++head) {
        for (int64_t x = 0; x < problem.head_dim(); ++x) {
          const double added = static_cast<double>(Draw(-32, 32)) / 16;
          for (int64_t n = 0; n < problem.key_len(b); ++n) {
            const int64_t row = problem.SequenceStart(kK, b) + n;
            moved[kK][static_cast<size_t>(b * strides.batch + head * strides.head + row * strides.row + x)] += added;
          }
        }
      }
    }
    const std::pair<Operation, TensorSet> runs[] = {{Operation::kForward, {}},
                                                    {Operation::kBackward, {}},
                                                    {Operation::kDoubleBackward, kCotangents},
                                                    {Operation::kJvp, kTangents | TensorSet{kDo, kTdo}}};
    for (const auto& [operation, given] : runs) {
      const Outcome before = Run(spec, operation, given, inputs);
      const Outcome after = Run(spec, operation, given, moved);
      for (const auto& [name, values] : after.values) {
        if (name != kLse && name != kTlse) ExpectSame(values, before.values.at(name), name, after, spec.dtype);
      }
    }
  }
}

TEST_P(IdentitiesTest, PermutedKeysPermuteKeySideOutputs) {
  for (int i = 0; i < kProblems; ++i) {
    CaseSpec spec = DrawProblem();
    spec.options.layout = Layout::kBHND;
    spec.options.window_left = spec.options.window_right = -1;
    spec.options.cu_seqlens_q = spec.options.cu_seqlens_k = {};
    SCOPED_TRACE(Describe(spec));
    const Elements inputs = DrawTensors(spec);
    std::vector<size_t> order(static_cast<size_t>(spec.key_len));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), generator_);
    const auto permuted = [&](TensorName name, const std::vector<double>& values) {
      if (IsQuerySide(name)) return values;
      const auto width = static_cast<size_t>(WidthOf(name) == Width::kHeadDim ? spec.head_dim : spec.value_dim);
      std::vector<double> result(values.size());
      for (size_t row = 0; row < values.size() / width; ++row) {
        const size_t from = row - row % order.size() + order[row % order.size()];
        std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(from * width), width,
                    result.begin() + static_cast<std::ptrdiff_t>(row * width));
      }
      return result;
    };
    Elements permuted_inputs;
    for (const auto& [name, values] : inputs) permuted_inputs[name] = permuted(name, values);
    const std::pair<Operation, TensorSet> runs[] = {{Operation::kBackward, {}},
                                                    {Operation::kDoubleBackward, kCotangents},
                                                    {Operation::kJvp, kTangents | TensorSet{kDo, kTdo}}};
    for (const auto& [operation, given] : runs) {
      const Outcome before = Run(spec, operation, given, inputs);
      const Outcome after = Run(spec, operation, given, permuted_inputs);
      for (const auto& [name, values] : after.values) {
        ExpectSame(values, permuted(name, before.values.at(name)), name, after, spec.dtype);
      }
    }
  }
}

// Visits the elements of one probe, sequence and kv head: its query heads' rows, or its own.
template <typename Visit>
void ForPart(const AttentionProblem& problem, TensorName name, int64_t probe, int64_t b, int64_t kv_head, Visit visit) {
  const Strides strides = problem.StridesOf(name);
  const bool query_side = IsQuerySide(name);
  const int64_t heads = query_side ? problem.group() : 1;
  const int64_t rows = query_side ? problem.query_len(b) : problem.key_len(b);
  const int64_t width = WidthOf(name) == Width::kNone      ? 1
                        : WidthOf(name) == Width::kHeadDim ? problem.head_dim()
                                                           : problem.value_dim();
  size_t part_index = 0;
  for (int64_t head = kv_head * heads; head < (kv_head + 1) * heads; ++head) {
    for (int64_t n = 0; n < rows; ++n) {
      for (int64_t x = 0; x < width; ++x) {
        const int64_t row = problem.SequenceStart(name, b) + n;
        visit(static_cast<size_t>(probe * strides.probe + b * strides.batch + head * strides.head + row * strides.row +
                                  x),
              part_index++);
      }
    }
  }
}

TEST_P(IdentitiesTest, SplitOverCallsChangesNothing) {
  for (int i = 0; i < kProblems; ++i) {
    const CaseSpec spec = DrawProblem();
    SCOPED_TRACE(Describe(spec));
    const Elements inputs = DrawTensors(spec);
    const bool jvp = Draw(0, 1) == 0;
    const Operation operation = jvp ? Operation::kJvp : Operation::kDoubleBackward;
    const TensorSet given = jvp ? kTangents | TensorSet{kDo, kTdo} : kCotangents;
    const Computation whole = Of(spec, operation, given);
    const AttentionProblem& problem = whole.problem();
    const Outcome together = Run(spec, operation, given, inputs);

    Elements assembled;
    for (const auto& [name, values] : together.values) assembled[name].assign(values.size(), std::nan(""));
    for (int64_t probe = 0; probe < problem.probe_count(); ++probe) {
      for (int64_t b = 0; b < problem.batch(); ++b) {
        for (int64_t kv_head = 0; kv_head < problem.kv_heads(); ++kv_head) {
          CaseSpec part = spec;
          part.batch = 1;
          part.heads = problem.group();
          part.kv_heads = 1;
          part.query_len = problem.query_len(b);
          part.key_len = problem.key_len(b);
          part.options.layout = Layout::kBHND;
          part.options.cu_seqlens_q = part.options.cu_seqlens_k = {};
          part.options.probes = 0;
          Elements part_inputs;
          whole.inputs().ForEach([&](TensorName name) {
            ForPart(problem, name, probe, b, kv_head,
                    [&](size_t index, size_t) { part_inputs[name].push_back(inputs.at(name)[index]); });
            part_inputs[name];  // also where it is empty
          });
          const Outcome outcome = Run(part, operation, given, part_inputs);
          for (const auto& [name, values] : outcome.values) {
            ForPart(problem, name, probe, b, kv_head,
                    [&, name = name, &part_values = values](size_t index, size_t part_index) {
                      assembled[name][index] = part_values[part_index];
                    });
          }
        }
      }
    }
    for (const auto& [name, values] : together.values) ExpectSame(values, assembled[name], name, together, spec.dtype);
  }
}

INSTANTIATE_TEST_SUITE_P(Engines, IdentitiesTest, testing::ValuesIn(EnginesUnderTest()),
                         [](const testing::TestParamInfo<EngineUnderTest>& info) { return info.param.name; });

}  // namespace
}  // namespace flashbob
