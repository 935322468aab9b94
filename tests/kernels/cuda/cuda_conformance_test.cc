// The conformance cases that the CPU engine runs, on every operation, dtype, mask and corner, on the first GPU; and
// cases of the GPU's own: the bars of half precision at lengths where they hold, items cut over many launches,
// determinism.
#include <gtest/gtest.h>

#include <array>
#include <iostream>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/conformance/case.h"
#include "kernels/conformance/cases.h"
#include "kernels/conformance/host_tensor.h"
#include "kernels/conformance/run.h"
#include "kernels/cuda/cuda_engine.h"
#include "tests/kernels/cuda/device_runner.h"
#include "tests/seed.h"

namespace flashbob {
namespace {

using conformance::BarKind;
using conformance::CaseReport;
using conformance::CaseSpec;
using conformance::ConformanceCase;
using enum TensorName;
using Elements = std::map<TensorName, std::vector<double>>;
using testing_seed::Seed;

class CudaConformance : public testing::Test {
 protected:
  void SetUp() override {
    if (CudaDevices().empty()) GTEST_SKIP() << "no GPU to test on: " << WhyNoCudaDevices();
  }

  static std::unique_ptr<Engine> MakeEngine(const CudaEngineOptions& options = {}) {
    absl::StatusOr<std::unique_ptr<Engine>> engine = CreateCudaEngine(CudaDevices().front(), options);
    EXPECT_TRUE(engine.ok()) << engine.status();
    return engine.ok() ? *std::move(engine) : nullptr;
  }

  // Engines of the portable kernels and, where the device and the build have them, of those for Hopper.
  struct NamedEngine {
    std::string name;
    std::unique_ptr<Engine> engine;
  };
  static std::vector<NamedEngine> MakeEngines(CudaEngineOptions options = {}) {
    std::vector<NamedEngine> engines;
    options.hopper = HopperKernels::kNever;
    engines.push_back({"portable", MakeEngine(options)});
    options.hopper = HopperKernels::kRequired;
    absl::StatusOr<std::unique_ptr<Engine>> hopper = CreateCudaEngine(CudaDevices().front(), options);
    if (hopper.ok()) engines.push_back({"hopper", *std::move(hopper)});
    return engines;
  }

  static void RunAll(const std::vector<NamedEngine>& engines, const std::vector<ConformanceCase>& cases) {
    for (const NamedEngine& one : engines) {
      SCOPED_TRACE(one.name);
      std::cout << one.name << ": ";
      RunAll(*one.engine, cases);
    }
  }

  static void RunAll(Engine& engine, const std::vector<ConformanceCase>& cases) {
    int run = 0;
    for (const ConformanceCase& one : cases) {
      const absl::StatusOr<CaseReport> report = conformance::RunCase(one, BarKind::kGpu, PoisoningRunnerOf(engine));
      ASSERT_TRUE(report.ok()) << one.shape() << ": " << report.status();
      EXPECT_TRUE(report->ok) << report->ToString();
      ++run;
    }
    std::cout << run << " cases\n";
  }

  // The outputs of one run; `inputs` are rounded to the computation's dtype.
  static Elements RunOnce(Engine& engine, const Computation& computation, const Elements& inputs) {
    const AttentionProblem& problem = computation.problem();
    TensorPointers pointers;
    std::map<TensorName, conformance::HostTensor> tensors;
    for (const auto& [name, values] : inputs) {
      pointers.Set(name, tensors.try_emplace(name, problem.DTypeOf(name), values).first->second.data());
    }
    computation.outputs().ForEach([&](TensorName name) {
      const auto elements = static_cast<size_t>(problem.NumElements(name));
      pointers.Set(name, tensors.try_emplace(name, problem.DTypeOf(name), elements).first->second.data());
    });
    const absl::Status status = RunToCompletion(engine, computation, pointers);
    EXPECT_TRUE(status.ok()) << status;
    Elements outputs;
    computation.outputs().ForEach([&](TensorName name) { outputs[name] = tensors.at(name).Values(); });
    return outputs;
  }

  static ConformanceCase Make(const CaseSpec& spec) {
    absl::StatusOr<ConformanceCase> made = ConformanceCase::Create(spec);
    EXPECT_TRUE(made.ok()) << made.status();
    return *std::move(made);
  }
};

struct Variant {
  Operation operation;
  TensorSet optional_inputs;
};

const Variant kVariants[] = {
    {Operation::kForward, {}},
    {Operation::kBackward, {kO, kLse}},
    {Operation::kDoubleBackward, {kO, kLse, kUq, kUk, kUv}},
    {Operation::kJvp, {kO, kLse, kTq, kTk, kTv, kDo, kTdo}},
};

CaseSpec Square(const Variant& variant, DType dtype, int64_t heads, int64_t length, int64_t dim) {
  CaseSpec spec;
  spec.operation = variant.operation;
  spec.optional_inputs = variant.optional_inputs;
  spec.dtype = dtype;
  spec.heads = heads;
  spec.kv_heads = heads;
  spec.query_len = spec.key_len = length;
  spec.head_dim = spec.value_dim = dim;
  spec.seed = Seed() + static_cast<uint64_t>(length * 1000 + dim);
  return spec;
}

TEST_F(CudaConformance, QuickCasesKeepTheirBars) { RunAll(MakeEngines(), conformance::QuickCases(Seed())); }

TEST_F(CudaConformance, FullCasesKeepTheirBars) { RunAll(MakeEngines(), conformance::FullCases(Seed())); }

TEST_F(CudaConformance, LongFullMasksKeepTheRowOfTheirDtype) {
  std::vector<ConformanceCase> cases;
  for (const Variant& variant : kVariants) {
    for (DType dtype : kAllDTypes) {
      for (int64_t dim : {64, 128}) cases.push_back(Make(Square(variant, dtype, 1, 1024, dim)));
    }
  }
  RunAll(MakeEngines(), cases);
}

// Small enough for compute-sanitizer: every operation and kernel of a dtype once. Of fp32, 33 has the plain kernels,
// the others TF32; of fp64, 72.
class CudaSweep : public CudaConformance, public testing::WithParamInterface<DType> {};

TEST_P(CudaSweep, SmallOddShapesKeepTheirBars) {
  std::vector<ConformanceCase> cases;
  const std::vector<int64_t> dims = GetParam() == DType::kFloat64   ? std::vector<int64_t>{33, 64, 72}
                                    : GetParam() == DType::kFloat32 ? std::vector<int64_t>{33, 36, 64, 128}
                                                                    : std::vector<int64_t>{33, 36, 64, 128, 256};
  for (const Variant& variant : kVariants) {
    for (int64_t dim : dims) {
      CaseSpec spec = Square(variant, GetParam(), 2, 70, dim);
      spec.kv_heads = 1;
      spec.key_len = 133;
      spec.options.allow_tf32 = dim != 33;
      spec.options.window_right = 0;
      spec.options.alignment = Alignment::kBottomRight;
      spec.mask = "causal-bottom-right";
      cases.push_back(Make(spec));
      if (variant.operation == Operation::kJvp) {
        spec.optional_inputs = {kTq, kTk, kTv, kDo};
        cases.push_back(Make(spec));
      }
    }
  }
  RunAll(MakeEngines(), cases);
}

INSTANTIATE_TEST_SUITE_P(DTypes, CudaSweep, testing::ValuesIn(kAllDTypes),
                         [](const auto& info) { return std::string(Name(info.param)); });

TEST_F(CudaConformance, KernelsOfSmallerDevicesKeepTheirBars) {
  const std::unique_ptr<Engine> engine = MakeEngine({.max_shared_bytes = 99 << 10});
  std::vector<ConformanceCase> cases;
  for (const Variant& variant : kVariants) {
    for (DType dtype : {DType::kBFloat16, DType::kFloat16}) {
      for (int64_t dim : {64, 128}) {
        for (int64_t right : {-1, 0}) {
          CaseSpec spec = Square(variant, dtype, 4, 389, dim);
          spec.kv_heads = 2;
          spec.options.window_right = right;
          spec.mask = right == 0 ? "causal" : "full";
          cases.push_back(Make(spec));
          if (variant.operation == Operation::kJvp) {
            spec.optional_inputs = {kTq, kTk, kTv, kDo};
            cases.push_back(Make(spec));
          }
        }
      }
    }
  }
  RunAll(*engine, cases);
}

// Every set of cotangents or tangents, on the kernels that compute the products of those alone.
TEST_F(CudaConformance, LeftOutTangentsChangeNothingElse) {
  std::vector<ConformanceCase> cases;
  for (DType dtype : {DType::kBFloat16, DType::kFloat16, DType::kFloat32}) {
    for (int64_t dim : {64, 128}) {
      for (unsigned bits = 1; bits < 8; ++bits) {
        TensorSet cotangents = {kO, kLse};
        TensorSet tangents = {kDo};
        for (unsigned i = 0; i < 3; ++i) {
          if ((bits >> i & 1) == 0) continue;
          cotangents.Add(std::array{kUq, kUk, kUv}[i]);
          tangents.Add(std::array{kTq, kTk, kTv}[i]);
        }
        const Variant variants[] = {{Operation::kDoubleBackward, cotangents},
                                    {Operation::kJvp, tangents},
                                    {Operation::kJvp, tangents | TensorSet{kTdo}}};
        for (const Variant& variant : variants) {
          CaseSpec spec = Square(variant, dtype, 4, 150, dim);
          spec.kv_heads = 2;
          spec.key_len = 200;
          spec.options.window_right = bits % 2 == 0 ? 0 : -1;
          spec.options.probes = bits % 3;
          spec.options.allow_tf32 = true;
          spec.mask = bits % 2 == 0 ? "causal" : "full";
          cases.push_back(Make(spec));
        }
      }
    }
  }
  RunAll(MakeEngines(), cases);
  RunAll(*MakeEngine({.max_shared_bytes = 99 << 10}), cases);
}

TEST_F(CudaConformance, Tf32KeepsItsBarWhereItIsPermitted) {
  std::vector<ConformanceCase> cases;
  for (const Variant& variant : kVariants) {
    for (int64_t dim : {33, 64, 100, 128}) {
      for (int64_t length : {100, 1024}) {
        for (int64_t right : {-1, 0}) {
          CaseSpec spec = Square(variant, DType::kFloat32, 2, length, dim);
          spec.options.allow_tf32 = true;
          spec.options.window_right = right;
          spec.mask = right == 0 ? "causal" : "full";
          cases.push_back(Make(spec));
        }
      }
    }
  }
  RunAll(*MakeEngine(), cases);
}

TEST_F(CudaConformance, ItemsCutOverManyLaunchesGiveTheSame) {
  // Slices so short that row blocks and key blocks are cut along their walks.
  const std::vector<NamedEngine> engines = MakeEngines({.slice_seconds = 2e-6});
  std::vector<ConformanceCase> cases;
  for (const Variant& variant : kVariants) {
    for (DType dtype : kAllDTypes) {
      for (int64_t right : {-1, 0}) {
        CaseSpec spec = Square(variant, dtype, 4, 389, 64);
        spec.kv_heads = 2;
        spec.batch = 2;
        spec.key_len = 641;
        spec.options.window_right = right;
        spec.mask = right == 0 ? "causal" : "full";
        cases.push_back(Make(spec));
        spec.options.window_left = 70;
        spec.options.window_right = 3;
        spec.mask = "window";
        cases.push_back(Make(spec));
        spec.options.layout = Layout::kTHD;
        spec.options.cu_seqlens_q = {0, 0, 300, 301, 389};
        spec.options.cu_seqlens_k = {0, 7, 520, 530, 641};
        spec.options.allow_tf32 = true;
        spec.mask = "packed-window";
        cases.push_back(Make(spec));
        spec.head_dim = 33;
        spec.value_dim = 150;
        cases.push_back(Make(spec));
      }
    }
  }
  RunAll(engines, cases);
  for (const NamedEngine& one : engines) {
    const absl::StatusOr<std::unique_ptr<const Plan>> plan = one.engine->MakePlan(cases.front().computation());
    ASSERT_TRUE(plan.ok());
    EXPECT_GT((*plan)->num_slices(), 3) << one.name;
  }
}

// Few heads and long walks: several CTAs share an item. Layouts, masks, groups and left-out cotangents that go with it.
TEST_F(CudaConformance, SharedWalksKeepTheirBars) {
  std::vector<ConformanceCase> cases;
  int64_t turn = 0;
  for (const Variant& variant : kVariants) {
    const bool second = variant.operation == Operation::kDoubleBackward || variant.operation == Operation::kJvp;
    for (DType dtype : {DType::kBFloat16, DType::kFloat16}) {
      for (int64_t dim : {64, 128}) {
        for (int64_t right : {-1, 0}) {
          CaseSpec spec = Square(variant, dtype, 2, 1025 + 130 * (turn % 3), dim);
          spec.kv_heads = 1 + turn % 2;
          spec.key_len = 1400 - 97 * (turn % 4);
          spec.options.window_right = right;
          spec.options.alignment = turn % 2 == 0 ? Alignment::kTopLeft : Alignment::kBottomRight;
          spec.mask = right == 0 ? "causal" : "full";
          spec.options.layout = turn % 4 < 2 ? Layout::kBHND : Layout::kBNHD;
          if (second && turn % 3 == 1) spec.options.probes = 2;
          if (second && turn % 3 == 2) spec.optional_inputs.Remove(variant.operation == Operation::kJvp ? kTdo : kUq);
          if (variant.operation == Operation::kJvp) spec.optional_inputs.Remove(kTdo);
          if (turn % 5 == 4) spec.options.window_left = 300;
          if (turn % 5 == 3) spec.options.scale = -0.1;
          cases.push_back(Make(spec));
          ++turn;
        }
      }
    }
  }
  RunAll(MakeEngines(), cases);
}

// Sequences of any length side by side: what lies past a sequence's end is its neighbour's, here infinite.
TEST_F(CudaConformance, PackedSequencesDoNotSeeTheirNeighbours) {
  for (const NamedEngine& one : MakeEngines()) {
    SCOPED_TRACE(one.name);
    for (int64_t dim : {64, 128}) {
      CaseSpec spec = Square(kVariants[2], DType::kBFloat16, 2, 331, dim);
      spec.options.layout = Layout::kTHD;
      spec.options.cu_seqlens_q = spec.options.cu_seqlens_k = {0, 100, 200, 331};
      spec.optional_inputs = {kUq, kUk, kUv};
      const ConformanceCase whole = Make(spec);
      const absl::StatusOr<Elements> inputs = conformance::MakeInputs(whole);
      ASSERT_TRUE(inputs.ok());
      const Elements clean = RunOnce(*one.engine, whole.computation(), *inputs);
      Elements poisoned = *inputs;
      const int64_t row = 2 * dim;
      for (auto& [name, values] : poisoned) {
        for (int64_t i = 100 * row; i < 200 * row; ++i) {
          values[static_cast<size_t>(i)] = std::numeric_limits<double>::infinity();
        }
      }
      const Elements outputs = RunOnce(*one.engine, whole.computation(), poisoned);
      for (const auto& [name, values] : outputs) {
        std::vector<double> got;
        std::vector<double> expected;
        for (int64_t i = 0; i < 331 * row; ++i) {
          if (i >= 100 * row && i < 200 * row) continue;
          got.push_back(values[static_cast<size_t>(i)]);
          expected.push_back(clean.at(name)[static_cast<size_t>(i)]);
        }
        const ReferenceTensor reference = {expected, expected};
        EXPECT_LE(conformance::RelativeError(got, reference, DType::kBFloat16), 1e-3) << Name(name);
      }
    }
  }
}

// The oracle is the engine's own fp64, which the cases above hold to 1e-12.
TEST_F(CudaConformance, HalfPrecisionKeepsItsRowAt65536Keys) {
  const std::vector<NamedEngine> engines = MakeEngines();
  constexpr int64_t kLength = 65536;
  constexpr int64_t kRows = 4096;  // queries: a sixteenth of the work of a square, and rows as long
  for (DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    CaseSpec spec = Square({Operation::kDoubleBackward, {kUq, kUk, kUv}}, dtype, 1, kRows, 64);
    spec.key_len = kLength;
    const ConformanceCase one = Make(spec);
    const absl::StatusOr<Elements> inputs = conformance::MakeInputs(one);
    ASSERT_TRUE(inputs.ok());
    spec.dtype = DType::kFloat64;
    const Elements exact = RunOnce(*engines.front().engine, Make(spec).computation(), *inputs);
    for (const NamedEngine& kernels : engines) {
      const Elements rounded = RunOnce(*kernels.engine, one.computation(), *inputs);
      for (const auto& [name, values] : rounded) {
        const ReferenceTensor reference = {exact.at(name), exact.at(name)};
        const double error = conformance::RelativeError(values, reference, dtype);
        EXPECT_LE(error, conformance::ErrorBar(BarKind::kGpu, dtype, false)) << Name(dtype) << " " << Name(name);
        std::cout << kernels.name << " " << Name(dtype) << " " << Name(name) << " " << error << "\n";
      }
    }
  }
}

TEST_F(CudaConformance, DeterministicGivesTheSameBits) {
  for (const NamedEngine& kernels : MakeEngines()) {
    SCOPED_TRACE(kernels.name);
    for (DType dtype : kAllDTypes) {
      for (int64_t right : {-1, 0}) {
        for (int64_t dim : {64, 128, 50}) {
          CaseSpec spec = Square(kVariants[2], dtype, 4, 1000, dim);
          spec.kv_heads = 2;
          spec.options.deterministic = true;
          spec.options.allow_tf32 = true;
          spec.options.window_right = right;
          const ConformanceCase one = Make(spec);
          RunAll(*kernels.engine, {one});
          const absl::StatusOr<Elements> inputs = conformance::MakeInputs(one);
          ASSERT_TRUE(inputs.ok());
          const Elements first = RunOnce(*kernels.engine, one.computation(), *inputs);
          for (int run = 1; run < 4; ++run) {
            EXPECT_EQ(first, RunOnce(*kernels.engine, one.computation(), *inputs))
                << "run " << run << ", " << Name(dtype);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace flashbob
