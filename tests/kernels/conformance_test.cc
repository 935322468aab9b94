// What judges engines, judged: the reference passes as an engine, and engines with one thing wrong do not.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <string>
#include <tuple>

#include "kernels/conformance/cases.h"
#include "kernels/conformance/error.h"
#include "kernels/conformance/run.h"
#include "tests/kernels/reference_runner.h"
#include "tests/seed.h"

namespace flashbob::conformance {
namespace {

using enum TensorName;

CaseReport Report(const ConformanceCase& conformance_case, const Runner& runner, BarKind kind = BarKind::kCpu) {
  absl::StatusOr<CaseReport> report = RunCase(conformance_case, kind, runner);
  EXPECT_TRUE(report.ok()) << report.status();
  return *std::move(report);
}

ConformanceCase DoubleBackwardCase(DType dtype) {
  CaseSpec spec;
  spec.operation = Operation::kDoubleBackward;
  spec.dtype = dtype;
  spec.optional_inputs = {kUq, kUk, kUv};
  spec.heads = 4;
  spec.kv_heads = 2;
  spec.query_len = spec.key_len = 64;
  spec.head_dim = spec.value_dim = 32;
  spec.seed = testing_seed::Seed();
  return ConformanceCase::Create(spec).value();
}

// A runner that lets the reference compute and then spoils what it wrote.
Runner Spoiled(const std::function<void(const AttentionProblem&, const TensorPointers&)>& spoil) {
  return [spoil](const Computation& computation, const TensorPointers& tensors) {
    const absl::Status status = RunReference(computation, tensors);
    spoil(computation.problem(), tensors);
    return status;
  };
}

float* Floats(const TensorPointers& tensors, TensorName name) { return static_cast<float*>(tensors.Get(name)); }

TEST(ConformanceTest, ReferencePassesAsAnEngine) {
  for (const ConformanceCase& conformance_case : QuickCases(testing_seed::Seed())) {
    for (BarKind kind : {BarKind::kCpu, BarKind::kGpu}) {
      const CaseReport report = Report(conformance_case, RunReference, kind);
      EXPECT_TRUE(report.ok) << report.ToString();
    }
  }
}

TEST(ConformanceTest, FlippedSignIsCaught) {
  for (TensorName output : {kGq, kGk, kGv, kGdo}) {
    const CaseReport report =
        Report(DoubleBackwardCase(DType::kFloat32), Spoiled([&](const AttentionProblem& problem, const auto& tensors) {
                 for (int64_t i = 0; i < problem.NumElements(output); ++i) Floats(tensors, output)[i] *= -1;
               }));
    EXPECT_FALSE(report.ok) << report.ToString();
    for (const OutputReport& each : report.outputs) EXPECT_EQ(each.ok, each.name != output) << report.ToString();
  }
}

TEST(ConformanceTest, DroppedCotangentIsCaught) {
  for (DType dtype : kAllDTypes) {
    for (TensorName dropped : {kUq, kUk, kUv}) {
      const ConformanceCase whole = DoubleBackwardCase(dtype);
      CaseSpec spec = whole.spec();
      spec.optional_inputs.Remove(dropped);
      const Computation without = MakeComputation(spec).value();
      const CaseReport report = Report(
          whole, [&](const Computation&, const TensorPointers& tensors) { return RunReference(without, tensors); });
      EXPECT_FALSE(report.ok) << report.ToString();
    }
  }
}

TEST(ConformanceTest, WrongScaleAndWrongMaskAreCaught) {
  for (DType dtype : kAllDTypes) {
    const ConformanceCase right = DoubleBackwardCase(dtype);
    CaseSpec other_scale = right.spec();
    other_scale.options.scale = right.computation().problem().scale() * 1.05;
    CaseSpec other_mask = right.spec();
    other_mask.options.window_right = right.spec().key_len - 2;  // one pair fewer is visible
    for (const CaseSpec& spec : {other_scale, other_mask}) {
      const Computation wrong = MakeComputation(spec).value();
      const CaseReport report = Report(
          right, [&](const Computation&, const TensorPointers& tensors) { return RunReference(wrong, tensors); });
      EXPECT_FALSE(report.ok) << report.ToString();
    }
  }
}

TEST(ConformanceTest, UnwrittenElementIsCaughtAndCounted) {
  for (DType dtype : kAllDTypes) {
    const ConformanceCase conformance_case = DoubleBackwardCase(dtype);
    const CaseReport report =
        Report(conformance_case, Spoiled([](const AttentionProblem& problem, const auto& tensors) {
                 const size_t size = SizeOf(problem.dtype());
                 std::memset(static_cast<char*>(tensors.Get(kGk)) + 77 * size, 0xff, size);
               }));
    EXPECT_FALSE(report.ok);
    for (const OutputReport& output : report.outputs) EXPECT_EQ(output.unwritten, output.name == kGk ? 1 : 0);
  }
}

TEST(ConformanceTest, NanWhereTheReferenceIsFiniteIsCaught) {
  const CaseReport report = Report(DoubleBackwardCase(DType::kFloat32), Spoiled([](const auto&, const auto& tensors) {
                                     Floats(tensors, kGq)[3] = std::numeric_limits<float>::quiet_NaN();
                                   }));
  EXPECT_FALSE(report.ok);
}

TEST(ConformanceTest, WriteBesideAnOutputIsCaught) {
  for (int64_t offset : {-1, 4 * 64 * 32}) {
    const CaseReport report =
        Report(DoubleBackwardCase(DType::kFloat32),
               Spoiled([&](const auto&, const auto& tensors) { Floats(tensors, kGq)[offset] = 0; }));
    EXPECT_FALSE(report.ok);
    EXPECT_EQ(report.defect, "bytes beside output gq were written");
  }
}

TEST(ConformanceTest, ChangedInputIsCaught) {
  const CaseReport report = Report(DoubleBackwardCase(DType::kFloat32),
                                   Spoiled([](const auto&, const auto& tensors) { Floats(tensors, kUv)[5] += 1; }));
  EXPECT_FALSE(report.ok);
  EXPECT_EQ(report.defect, "input uv was changed");
}

TEST(ConformanceTest, ErrorsJustAboveTheBarAreCaught) {
  for (const double relative : {0.9, 1.1}) {
    const auto spoil = [&](const AttentionProblem& problem, const TensorPointers& tensors) {
      // The score's factor max(1, max|S| / 4) is 1 here.
      for (int64_t i = 0; i < problem.NumElements(kGdo); ++i) {
        static_cast<double*>(tensors.Get(kGdo))[i] *= 1 + relative * 1e-12;
      }
    };
    CaseSpec spec = DoubleBackwardCase(DType::kFloat64).spec();
    spec.query_deviation = 0.5;
    const CaseReport report = Report(ConformanceCase::Create(spec).value(), Spoiled(spoil));
    EXPECT_EQ(report.ok, relative < 1) << report.ToString();
  }
}

TEST(ConformanceTest, RunnersStatusIsReturned) {
  const auto report = RunCase(DoubleBackwardCase(DType::kFloat32), BarKind::kCpu,
                              [](const auto&, const auto&) { return absl::UnavailableError("no device"); });
  EXPECT_EQ(report.status(), absl::UnavailableError("no device"));
}

TEST(ConformanceTest, QuickCasesCoverEveryOperationDtypeAndMask) {
  std::set<std::tuple<std::string, std::string, std::string>> seen;
  std::set<std::string> masks;
  const std::vector<ConformanceCase> cases = QuickCases(testing_seed::Seed());
  for (const ConformanceCase& each : cases) {
    masks.insert(each.spec().mask);
    seen.insert({Name(each.spec().operation), Name(each.spec().dtype), each.spec().mask});
  }
  EXPECT_EQ(masks.size(), 9u);
  EXPECT_EQ(seen.size(), 4 * 4 * masks.size());
}

TEST(ConformanceTest, QuickCasesCoverEveryFeatureWithEveryOperationAndDtype) {
  using Predicate = std::function<bool(const CaseSpec&, const Computation&)>;
  const std::pair<const char*, Predicate> features[] = {
      {"grouped", [](const auto& spec, const auto&) { return spec.heads > spec.kv_heads; }},
      {"value dim", [](const auto& spec, const auto&) { return spec.head_dim != spec.value_dim; }},
      {"fewer queries", [](const auto& spec, const auto&) { return spec.query_len < spec.key_len; }},
      {"fewer keys", [](const auto& spec, const auto&) { return spec.query_len > spec.key_len; }},
      {"probes", [](const auto& spec, const auto&) { return spec.options.probes > 1; }},
      {"one probe", [](const auto& spec, const auto&) { return spec.options.probes == 1; }},
      {"TF32", [](const auto& spec, const auto&) { return spec.options.allow_tf32; }},
      {"BHND", [](const auto& spec, const auto&) { return spec.options.layout == Layout::kBHND; }},
      {"BNHD", [](const auto& spec, const auto&) { return spec.options.layout == Layout::kBNHD; }},
      {"THD", [](const auto& spec, const auto&) { return spec.options.layout == Layout::kTHD; }},
      {"o and lse",
       [](const auto& spec, const auto& c) { return spec.operation == Operation::kForward || c.HasInput(kLse); }},
      {"left out",
       [](const auto& spec, const auto& c) {
         const TensorSet all = Computation::AllowedInputs(spec.operation) - TensorSet{kO, kLse, kDo, kTdo};
         return !c.inputs().HasAll(all) || spec.operation == Operation::kForward ||
                spec.operation == Operation::kBackward;
       }},
  };
  const std::vector<ConformanceCase> cases = QuickCases(testing_seed::Seed());
  for (const auto& [name, predicate] : features) {
    for (Operation operation : kAllOperations) {
      for (DType dtype : kAllDTypes) {
        bool found = false;
        for (const ConformanceCase& each : cases) {
          const CaseSpec& spec = each.spec();
          found = found || (spec.operation == operation && spec.dtype == dtype && predicate(spec, each.computation()));
        }
        EXPECT_TRUE(found) << name << " " << Name(operation) << " " << Name(dtype);
      }
    }
  }
}

TEST(ConformanceTest, InputsDependOnTheSeedAndTheNameAlone) {
  const ConformanceCase whole = DoubleBackwardCase(DType::kFloat32);
  CaseSpec spec = whole.spec();
  spec.optional_inputs.Remove(kUk);
  const auto inputs = MakeInputs(whole).value();
  EXPECT_EQ(inputs, MakeInputs(whole).value());
  const auto fewer = MakeInputs(ConformanceCase::Create(spec).value()).value();
  EXPECT_EQ(fewer.at(kUv), inputs.at(kUv));
  EXPECT_FALSE(fewer.contains(kUk));
  spec.seed += 1;
  EXPECT_NE(MakeInputs(ConformanceCase::Create(spec).value()).value().at(kUv), inputs.at(kUv));
  EXPECT_NE(inputs.at(kQ), inputs.at(kUq));
}

TEST(ConformanceTest, ErrorIsMeasuredAgainstTheLargerOfTheNorms) {
  const ReferenceTensor plain = {{3, 4}, {3, 4}};
  EXPECT_NEAR(RelativeError({3, 4.5}, plain, DType::kFloat64), 0.1, 1e-15);
  const ReferenceTensor cancelled = {{0, 0}, {30, 40}};
  EXPECT_NEAR(RelativeError({0, 0.05}, cancelled, DType::kFloat64), 0.1, 1e-15);
  const ReferenceTensor zero = {{0, 0}, {0, 0}};
  EXPECT_EQ(RelativeError({0, 0}, zero, DType::kFloat64), 0);
  EXPECT_TRUE(std::isinf(RelativeError({0, 1e-9}, zero, DType::kFloat64)));
  EXPECT_EQ(RelativeError({}, {}, DType::kFloat64), 0);
}

TEST(ConformanceTest, NonFiniteElementsMustBeWhereTheReferenceHasThem) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const ReferenceTensor reference = {{-kInf, 1, kNan}, {-kInf, 1, kNan}};
  EXPECT_EQ(RelativeError({-kInf, 1, kNan}, reference, DType::kFloat32), 0);
  EXPECT_TRUE(std::isinf(RelativeError({kInf, 1, kNan}, reference, DType::kFloat32)));
  EXPECT_TRUE(std::isinf(RelativeError({-kInf, 1, 1}, reference, DType::kFloat32)));
  EXPECT_TRUE(std::isinf(RelativeError({-kInf, kNan, kNan}, reference, DType::kFloat32)));
  const ReferenceTensor overflow = {{70000, 1}, {70000, 1}};
  EXPECT_EQ(RelativeError({kInf, 1}, overflow, DType::kFloat16), 0);
  EXPECT_TRUE(std::isinf(RelativeError({65504, 1}, overflow, DType::kFloat16)));
}

TEST(ConformanceTest, EffectiveElementsCountThoseThatCarryTheNorm) {
  EXPECT_EQ(EffectiveElements({2, -2, 2, 2}), 4);
  EXPECT_NEAR(EffectiveElements({1000, 1, 1, 1}), 1, 1e-4);
  EXPECT_EQ(EffectiveElements({0, 0, 3}), 1);
  EXPECT_EQ(EffectiveElements({-std::numeric_limits<double>::infinity(), 1}), 1);
  EXPECT_EQ(EffectiveElements({0, 0}), 0);
}

TEST(ConformanceTest, BarsAreThoseOfTheDesign) {
  const auto bar = [](BarKind kind, const CaseSpec& spec, double max_score, double rounded, double outlier = 1) {
    const Computation computation = MakeComputation(spec).value();
    ReferenceTensor reference;
    reference.value.assign(static_cast<size_t>(computation.problem().NumElements(kO)), 1);
    reference.value[0] = outlier;
    return OutputBar(kind, computation, kO, reference, max_score, rounded);
  };
  CaseSpec spec;
  spec.heads = spec.kv_heads = 8;
  spec.query_len = spec.key_len = 1024;
  spec.head_dim = spec.value_dim = 8;
  spec.dtype = DType::kFloat32;
  EXPECT_EQ(bar(BarKind::kCpu, spec, 3, 0), 2e-6);
  EXPECT_DOUBLE_EQ(bar(BarKind::kGpu, spec, 100, 0), 5e-5);
  spec.options.allow_tf32 = true;
  EXPECT_EQ(bar(BarKind::kGpu, spec, 1, 0), 1.5e-3);
  EXPECT_EQ(bar(BarKind::kCpu, spec, 1, 0), 2e-6);

  spec.dtype = DType::kBFloat16;
  EXPECT_EQ(bar(BarKind::kCpu, spec, 100, 1), 2.0e-3);
  EXPECT_EQ(bar(BarKind::kGpu, spec, 100, 1), 2.7e-3);
  EXPECT_EQ(bar(BarKind::kCpu, spec, 1, 3.5e-3, 1e6), 0x1p-7);  // one element is the norm
  spec.query_len = spec.key_len = 1023;                         // short for a GPU
  EXPECT_EQ(bar(BarKind::kCpu, spec, 1, 4e-3), 2.0e-3);
  EXPECT_EQ(bar(BarKind::kGpu, spec, 1, 4e-3), 8e-3);
  spec.query_len = 8;  // 512 elements
  EXPECT_EQ(bar(BarKind::kCpu, spec, 1, 4e-3), 8e-3);
  EXPECT_EQ(bar(BarKind::kCpu, spec, 1, 1e-9), 2.0e-3);
  spec.dtype = DType::kFloat16;
  spec.heads = spec.kv_heads = 1;
  spec.query_len = 7;  // 56 elements
  EXPECT_EQ(bar(BarKind::kCpu, spec, 1, 1e-9), 0x1p-10);
}

}  // namespace
}  // namespace flashbob::conformance
