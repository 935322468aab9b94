// The corners that architecture.md defines the same for every engine, besides those that conformance cases have: how
// far NaN and infinity reach, overflow, what keys past the end weigh, and the same bits from run to run.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "kernels/conformance/case.h"
#include "kernels/conformance/error.h"
#include "kernels/conformance/host_tensor.h"
#include "kernels/conformance/run.h"
#include "tests/kernels/engines_under_test.h"
#include "tests/kernels/reference_runner.h"
#include "tests/seed.h"

namespace flashbob {
namespace {

using conformance::CaseSpec;
using conformance::ConformanceCase;
using conformance::HostTensor;
using enum TensorName;

using Elements = std::map<TensorName, std::vector<double>>;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

CaseSpec EverythingOf(DType dtype) {
  CaseSpec spec;
  spec.operation = Operation::kJvp;
  spec.optional_inputs = {kDo, kTq, kTk, kTv, kTdo};
  spec.dtype = dtype;
  spec.seed = testing_seed::Seed();
  return spec;
}

class EngineCornersTest : public testing::TestWithParam<EngineUnderTest> {
 protected:
  std::map<TensorName, HostTensor> Run(const Computation& computation, const Elements& inputs) {
    return RunOn(runner_, computation, inputs);
  }

  static std::map<TensorName, HostTensor> RunOn(const conformance::Runner& runner, const Computation& computation,
                                                const Elements& inputs) {
    const AttentionProblem& problem = computation.problem();
    TensorPointers pointers;
    std::map<TensorName, HostTensor> given;
    std::map<TensorName, HostTensor> results;
    computation.inputs().ForEach([&](TensorName name) {
      pointers.Set(name, given.try_emplace(name, problem.DTypeOf(name), inputs.at(name)).first->second.data());
    });
    computation.outputs().ForEach([&](TensorName name) {
      const auto elements = static_cast<size_t>(problem.NumElements(name));
      pointers.Set(name, results.try_emplace(name, problem.DTypeOf(name), elements).first->second.data());
    });
    const absl::Status status = runner(computation, pointers);
    EXPECT_TRUE(status.ok()) << status;
    return results;
  }

  // Spoils one row of each input in turn and expects every row to have the bits it had, but for those that `may_reach`.
  // Rows are (sequence, head, row within the sequence) of the tensor's own heads.
  void ExpectSpoiledRowStaysWithin(
      const ConformanceCase& made, int64_t sequence, int64_t kv_head, int64_t row,
      const std::function<bool(TensorName, int64_t sequence, int64_t head, int64_t row)>& may_reach) {
    const AttentionProblem& problem = made.computation().problem();
    const Elements inputs = MakeInputs(made).value();
    const auto before = Run(made.computation(), inputs);
    made.computation().inputs().ForEach([&](TensorName spoiled) {
      for (double poison : {kNan, kInfinity}) {
        Elements poisoned = inputs;
        const int64_t head = IsQuerySide(spoiled) ? kv_head * problem.group() : kv_head;
        poisoned[spoiled][Offset(problem, spoiled, sequence, head, row)] = poison;
        const auto after = Run(made.computation(), poisoned);
        for (const auto& [output, tensor] : after) {
          ExpectSameRows(problem, output, before.at(output), tensor, may_reach, spoiled);
        }
      }
    });
  }

  conformance::Runner runner_ = GetParam().make_runner();

 private:
  static size_t Offset(const AttentionProblem& problem, TensorName name, int64_t sequence, int64_t head, int64_t row) {
    const Strides strides = problem.StridesOf(name);
    return static_cast<size_t>(sequence * strides.batch + head * strides.head +
                               (problem.SequenceStart(name, sequence) + row) * strides.row);
  }

  static void ExpectSameRows(const AttentionProblem& problem, TensorName output, const HostTensor& before,
                             const HostTensor& after,
                             const std::function<bool(TensorName, int64_t, int64_t, int64_t)>& may_reach,
                             TensorName spoiled) {
    const size_t width = WidthOf(output) == Width::kNone      ? 1
                         : WidthOf(output) == Width::kHeadDim ? static_cast<size_t>(problem.head_dim())
                                                              : static_cast<size_t>(problem.value_dim());
    const size_t size = SizeOf(problem.DTypeOf(output));
    const bool query_side = IsQuerySide(output);
    for (int64_t b = 0; b < problem.batch(); ++b) {
      for (int64_t head = 0; head < (query_side ? problem.heads() : problem.kv_heads()); ++head) {
        for (int64_t row = 0; row < (query_side ? problem.query_len(b) : problem.key_len(b)); ++row) {
          if (may_reach(output, b, head, row)) continue;
          const size_t begin = Offset(problem, output, b, head, row) * size;
          ASSERT_EQ(std::memcmp(static_cast<const char*>(before.data()) + begin,
                                static_cast<const char*>(after.data()) + begin, width * size),
                    0)
              << "spoiled " << Name(spoiled) << " reached " << Name(output) << " of sequence " << b << ", head " << head
              << ", row " << row;
        }
      }
    }
  }
};

TEST_P(EngineCornersTest, NanAndInfinityStayInTheirHeadAndBatchEntry) {
  for (Layout layout : {Layout::kBHND, Layout::kBNHD}) {
    for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      CaseSpec spec = EverythingOf(dtype);
      spec.options.layout = layout;
      spec.batch = 2;
      spec.heads = 6;
      spec.kv_heads = 3;
      spec.query_len = 37;  // no multiple of any tile
      spec.key_len = 41;
      spec.head_dim = 20;
      spec.value_dim = 12;
      const ConformanceCase made = ConformanceCase::Create(spec).value();
      ExpectSpoiledRowStaysWithin(made, 1, 1, 36, [](TensorName output, int64_t b, int64_t head, int64_t) {
        return b == 1 && (IsQuerySide(output) ? head / 2 : head) == 1;
      });
    }
  }
}

TEST_P(EngineCornersTest, NanAndInfinityStayInTheirPackedSequence) {
  for (DType dtype : {DType::kFloat64, DType::kFloat16}) {
    CaseSpec spec = EverythingOf(dtype);
    spec.options.layout = Layout::kTHD;
    spec.options.cu_seqlens_q = {0, 5, 5, 18, 50};
    spec.options.cu_seqlens_k = {0, 7, 9, 22, 41};
    spec.options.window_right = 0;
    spec.heads = spec.kv_heads = 2;
    spec.head_dim = spec.value_dim = 8;
    const ConformanceCase made = ConformanceCase::Create(spec).value();
    // The last row of a sequence and the first: each has another sequence beside it.
    for (int64_t row : {0, 12}) {
      ExpectSpoiledRowStaysWithin(made, 2, 0, row,
                                  [](TensorName, int64_t b, int64_t head, int64_t) { return b == 2 && head == 0; });
    }
  }
}

class TiledEngineCornersTest : public EngineCornersTest {};

TEST_P(TiledEngineCornersTest, NanAndInfinityDoNotPassTilesThatTheMaskSkips) {
  CaseSpec spec = EverythingOf(DType::kFloat32);
  spec.query_len = spec.key_len = 2048;
  spec.options.window_left = 64;
  spec.options.window_right = 64;
  spec.options.deterministic = true;  // results are compared bit by bit
  spec.head_dim = spec.value_dim = 16;
  const ConformanceCase made = ConformanceCase::Create(spec).value();
  // No tile is as long as half of this.
  ExpectSpoiledRowStaysWithin(made, 0, 0, 2000, [](TensorName, int64_t, int64_t, int64_t row) { return row > 900; });
}

TEST_P(EngineCornersTest, OverflowOfFp16IsInfiniteWhereTheReferenceSaysSo) {
  // Every query sees one key and its do is 60,000: dv is their sum, past 65,504.
  CaseSpec spec;
  spec.operation = Operation::kBackward;
  spec.dtype = DType::kFloat16;
  spec.query_len = 5;
  spec.key_len = 1;
  spec.head_dim = spec.value_dim = 8;
  const ConformanceCase made = ConformanceCase::Create(spec).value();
  Elements inputs = MakeInputs(made).value();
  for (size_t i = 0; i < inputs[kDo].size(); ++i) inputs[kDo][i] = i % 2 == 0 ? 60000 : -60000;
  const auto results = Run(made.computation(), inputs);
  const std::vector<double> dv = results.at(kDv).Values();
  for (size_t i = 0; i < dv.size(); ++i) EXPECT_EQ(dv[i], i % 2 == 0 ? kInfinity : -kInfinity);
}

TEST_P(EngineCornersTest, RowsWhoseGivenLseIsMinusInfinityTakeNoPart) {
  for (DType dtype : {DType::kFloat32, DType::kFloat64, DType::kBFloat16}) {
    CaseSpec spec;
    spec.operation = Operation::kDoubleBackward;
    spec.optional_inputs = {kO, kLse, kUq, kUk, kUv};
    spec.dtype = dtype;
    spec.query_len = 35;
    spec.key_len = 40;
    spec.head_dim = spec.value_dim = 16;
    spec.seed = testing_seed::Seed();
    const ConformanceCase made = ConformanceCase::Create(spec).value();
    Elements inputs = MakeInputs(made).value();
    for (double& lse : inputs[kLse]) lse = -kInfinity;
    for (const auto& [name, tensor] : Run(made.computation(), inputs)) {
      for (double element : tensor.Values()) ASSERT_EQ(element, 0) << Name(name) << " of " << Name(dtype);
    }
  }
}

// Kernels pad the last keys with zeros, whose scores of 0 lie far above those of the keys that there are: weighed, they
// would be exp(800). A kernel may test every pair of a walk of one or two query tiles, and not of a longer one: so many
// queries are four tiles of 64 even for each of sixteen CTAs that share the walk.
TEST_P(EngineCornersTest, KeysPastTheEndTakeNoPartHoweverLowTheScores) {
  const std::pair<Operation, TensorSet> computations[] = {{Operation::kForward, {}},
                                                          {Operation::kBackward, {}},
                                                          {Operation::kDoubleBackward, {kUq, kUk, kUv}},
                                                          {Operation::kJvp, {kTq, kTk, kTv, kDo}}};
  for (const auto& [operation, optional_inputs] : computations) {
    for (DType dtype : kAllDTypes) {
      CaseSpec spec;
      spec.operation = operation;
      spec.optional_inputs = optional_inputs;
      spec.dtype = dtype;
      spec.query_len = 4150;
      spec.key_len = 41;  // neither is a multiple of any tile
      spec.head_dim = spec.value_dim = 16;
      spec.seed = testing_seed::Seed();
      const ConformanceCase made = ConformanceCase::Create(spec).value();
      Elements inputs = MakeInputs(made).value();
      // The first column gives every score -0.25 x 64 x 50 and no tangent.
      for (const auto& [name, value] : {std::pair{kQ, 64}, {kK, -50}, {kUq, 0}, {kUk, 0}, {kTq, 0}, {kTk, 0}}) {
        if (!inputs.contains(name)) continue;
        for (size_t i = 0; i < inputs[name].size(); i += 16) inputs[name][i] = value;
      }
      const auto expected = RunOn(RunReference, made.computation(), inputs);
      for (const auto& [name, tensor] : Run(made.computation(), inputs)) {
        const std::vector<double> exact = expected.at(name).Values();
        // Column 0 of gradients is a difference of products with 50 or 64, which costs half precision its digits.
        EXPECT_LE(conformance::RelativeError(tensor.Values(), {exact, exact}, dtype), 0.1)
            << Name(name) << " of " << Name(operation) << ", " << Name(dtype);
      }
    }
  }
}

TEST_P(EngineCornersTest, DeterministicGivesTheSameBitsFromRunToRun) {
  for (DType dtype : kAllDTypes) {
    CaseSpec spec = EverythingOf(dtype);
    spec.options.deterministic = true;
    spec.options.probes = 2;
    spec.options.window_right = 3;
    spec.heads = 6;
    spec.kv_heads = 2;
    spec.query_len = 150;
    spec.key_len = 170;
    spec.head_dim = spec.value_dim = 24;
    const ConformanceCase made = ConformanceCase::Create(spec).value();
    const Elements inputs = MakeInputs(made).value();
    const auto first = Run(made.computation(), inputs);
    for (int i = 0; i < 3; ++i) {
      for (const auto& [name, tensor] : Run(made.computation(), inputs)) {
        EXPECT_EQ(std::memcmp(tensor.data(), first.at(name).data(), tensor.bytes()), 0) << Name(name);
      }
    }
  }
}

std::string NameOf(const testing::TestParamInfo<EngineUnderTest>& info) { return info.param.name; }

std::vector<EngineUnderTest> TiledEngines() {
  std::vector<EngineUnderTest> engines = EnginesUnderTest();
  std::erase_if(engines, [](const EngineUnderTest& engine) { return engine.materialises; });
  return engines;
}

INSTANTIATE_TEST_SUITE_P(Engines, EngineCornersTest, testing::ValuesIn(EnginesUnderTest()), NameOf);
INSTANTIATE_TEST_SUITE_P(Engines, TiledEngineCornersTest, testing::ValuesIn(TiledEngines()), NameOf);

}  // namespace
}  // namespace flashbob
