// What the CPU engine promises beside its numbers: the same bits always, no NaN across heads or sequences, its
// workspace and nothing else, slices that may be interleaved, and clear refusals.
#include "kernels/cpu/cpu_engine.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <vector>

#include "kernels/conformance/case.h"
#include "kernels/conformance/host_tensor.h"
#include "tests/seed.h"

namespace flashbob {
namespace {

using conformance::CaseSpec;
using conformance::ConformanceCase;
using conformance::HostTensor;
using enum TensorName;

// Inputs and outputs of a computation in host memory.
class Call {
 public:
  explicit Call(const CaseSpec& spec) : case_(ConformanceCase::Create(spec).value()) {
    const auto values = conformance::MakeInputs(case_).value();
    for (const auto& [name, elements] : values) Set(name, elements);
    computation().outputs().ForEach([&](TensorName name) {
      const auto elements = static_cast<size_t>(problem().NumElements(name));
      pointers_.Set(name, tensors_.try_emplace(name, problem().DTypeOf(name), elements).first->second.data());
    });
  }

  const Computation& computation() const { return case_.computation(); }
  const AttentionProblem& problem() const { return computation().problem(); }
  const TensorPointers& pointers() const { return pointers_; }

  std::vector<double> Get(TensorName name) const { return tensors_.at(name).Values(); }
  void Set(TensorName name, const std::vector<double>& elements) {
    tensors_.erase(name);
    pointers_.Set(name, tensors_.try_emplace(name, problem().DTypeOf(name), elements).first->second.data());
  }

  // Every output's bytes.
  std::map<TensorName, std::vector<unsigned char>> Outputs() const {
    std::map<TensorName, std::vector<unsigned char>> outputs;
    computation().outputs().ForEach([&](TensorName name) {
      const HostTensor& tensor = tensors_.at(name);
      const auto* bytes = static_cast<const unsigned char*>(tensor.data());
      outputs[name].assign(bytes, bytes + tensor.bytes());
    });
    return outputs;
  }

 private:
  ConformanceCase case_;
  std::map<TensorName, HostTensor> tensors_;
  TensorPointers pointers_;
};

CaseSpec DoubleBackward(DType dtype) {
  CaseSpec spec;
  spec.operation = Operation::kDoubleBackward;
  spec.optional_inputs = {kUq, kUk, kUv};
  spec.dtype = dtype;
  spec.heads = 4;
  spec.kv_heads = 2;
  spec.query_len = 400;
  spec.key_len = 350;
  spec.head_dim = 24;
  spec.value_dim = 16;
  spec.seed = testing_seed::Seed();
  return spec;
}

CaseSpec FullJvp(DType dtype) {
  CaseSpec spec = DoubleBackward(dtype);
  spec.operation = Operation::kJvp;
  spec.optional_inputs = {kTq, kTk, kTv, kDo, kTdo};
  return spec;
}

TEST(CpuEngineTest, SameBitsForAnyNumberOfThreadsAndAnySizeOfSlices) {
  for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat64}) {
    CaseSpec causal = DoubleBackward(dtype);
    causal.options.window_right = 0;
    CaseSpec probes = FullJvp(dtype);
    probes.options.probes = 3;
    CaseSpec backward = DoubleBackward(dtype);
    backward.operation = Operation::kBackward;
    backward.optional_inputs = {};
    for (const CaseSpec& spec : {DoubleBackward(dtype), causal, probes, backward}) {
      std::map<TensorName, std::vector<unsigned char>> expected;
      for (const cpu::CpuEngineOptions& options :
           {cpu::CpuEngineOptions{1, 1e12}, {2, 1e12}, {5, 1e12}, {1, 1}, {3, 1}, {4, 3e7}}) {
        const std::unique_ptr<Engine> engine = cpu::CreateCpuEngine(options);
        Call call(spec);
        const int runs = expected.empty() ? 2 : 1;
        for (int run = 0; run < runs; ++run) {
          ASSERT_TRUE(RunToCompletion(*engine, call.computation(), call.pointers()).ok());
          if (expected.empty()) expected = call.Outputs();
          EXPECT_EQ(call.Outputs(), expected) << options.threads << " threads, slices of " << options.slice_flops;
        }
      }
    }
  }
}

// Runs a call by hand over a workspace with guards on both sides, full of NaN.
void RunInGuardedWorkspace(Engine& engine, const Call& call) {
  constexpr size_t kGuard = 4096;
  const auto plan = engine.MakePlan(call.computation()).value();
  const auto stream = engine.CreateStream().value();
  const size_t bytes = plan->workspace_bytes();
  const size_t rounded = (bytes + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
  auto* memory = static_cast<unsigned char*>(engine.Allocate(kGuard + rounded + kGuard).value());
  std::memset(memory, 0xff, kGuard + rounded + kGuard);
  for (int slice = 0; slice < plan->num_slices(); ++slice) {
    ASSERT_TRUE(engine.Launch(*plan, slice, call.pointers(), memory + kGuard, *stream).ok());
  }
  ASSERT_TRUE(stream->Synchronize().ok());
  const auto untouched = [](const unsigned char* begin, size_t size) {
    return std::all_of(begin, begin + size, [](unsigned char byte) { return byte == 0xff; });
  };
  EXPECT_TRUE(untouched(memory, kGuard));
  EXPECT_TRUE(untouched(memory + kGuard + bytes, rounded - bytes + kGuard));
  engine.Free(memory);
}

TEST(CpuEngineTest, UsesItsWorkspaceAndNotAByteBeside) {
  for (DType dtype : kAllDTypes) {
    for (const cpu::CpuEngineOptions& options : {cpu::CpuEngineOptions{2, 1e12}, {3, 1}}) {
      const std::unique_ptr<Engine> engine = cpu::CreateCpuEngine(options);
      for (CaseSpec spec : {DoubleBackward(dtype), FullJvp(dtype)}) {
        for (Layout layout : {Layout::kBHND, Layout::kBNHD}) {
          spec.options.layout = layout;
          Call guarded(spec);
          RunInGuardedWorkspace(*engine, guarded);
          Call plain(spec);
          ASSERT_TRUE(RunToCompletion(*engine, plain.computation(), plain.pointers()).ok());
          EXPECT_EQ(guarded.Outputs(), plain.Outputs());
        }
      }
    }
  }
}

TEST(CpuEngineTest, SlicesOfSeveralPlansMayBeInterleaved) {
  const std::unique_ptr<Engine> engine = cpu::CreateCpuEngine({2, 3e6});
  const std::unique_ptr<Engine> whole = cpu::CreateCpuEngine({1, 1e12});
  const CaseSpec specs[] = {DoubleBackward(DType::kFloat32), FullJvp(DType::kFloat16), FullJvp(DType::kFloat64)};
  std::vector<Call> calls(std::begin(specs), std::end(specs));
  std::vector<std::unique_ptr<const Plan>> plans;
  std::vector<void*> workspaces;
  for (const Call& call : calls) {
    plans.push_back(engine->MakePlan(call.computation()).value());
    workspaces.push_back(engine->Allocate(plans.back()->workspace_bytes()).value());
    EXPECT_GT(plans.back()->num_slices(), 20);
  }
  const auto stream = engine->CreateStream().value();
  std::mt19937_64 generator(testing_seed::Seed());
  std::vector<int> next(calls.size(), 0);
  for (size_t left = calls.size(); left > 0;) {
    const size_t i = generator() % calls.size();
    if (next[i] == plans[i]->num_slices()) continue;
    ASSERT_TRUE(engine->Launch(*plans[i], next[i], calls[i].pointers(), workspaces[i], *stream).ok());
    if (++next[i] == plans[i]->num_slices()) --left;
  }
  for (size_t i = 0; i < calls.size(); ++i) {
    engine->Free(workspaces[i]);
    Call alone(specs[i]);
    ASSERT_TRUE(RunToCompletion(*whole, alone.computation(), alone.pointers()).ok());
    EXPECT_EQ(calls[i].Outputs(), alone.Outputs());
  }
}

// Sets one head's (batch entry's, sequence's) elements of every input to NaN and Inf and expects the outputs of all
// others to keep their bits.
void ExpectContained(const CaseSpec& spec, int64_t b, int64_t kv_head) {
  const std::unique_ptr<Engine> engine = cpu::CreateCpuEngine({2});
  Call clean(spec);
  ASSERT_TRUE(RunToCompletion(*engine, clean.computation(), clean.pointers()).ok());
  Call spoiled(spec);
  const AttentionProblem& problem = spoiled.problem();
  // Calls visit(index, inside) for the first element of each row of a tensor.
  const auto for_each_row = [&](TensorName name, const auto& visit) {
    const Strides strides = problem.StridesOf(name);
    const bool query_side = IsQuerySide(name);
    const int64_t heads = query_side ? problem.heads() : problem.kv_heads();
    const int64_t probes = HasProbeAxis(name) ? problem.probe_count() : 1;
    for (int64_t probe = 0; probe < probes; ++probe) {
      for (int64_t batch = 0; batch < problem.batch(); ++batch) {
        for (int64_t head = 0; head < heads; ++head) {
          const int64_t kv = query_side ? head / problem.group() : head;
          const int64_t length = query_side ? problem.query_len(batch) : problem.key_len(batch);
          for (int64_t row = 0; row < length; ++row) {
            visit(probe * strides.probe + batch * strides.batch + head * strides.head +
                      (problem.SequenceStart(name, batch) + row) * strides.row,
                  batch == b && kv == kv_head);
          }
        }
      }
    }
  };
  const auto columns = [&](TensorName name) {
    if (WidthOf(name) == Width::kNone) return int64_t{1};
    return WidthOf(name) == Width::kHeadDim ? problem.head_dim() : problem.value_dim();
  };
  std::mt19937_64 generator(testing_seed::Seed());
  spoiled.computation().inputs().ForEach([&](TensorName name) {
    std::vector<double> elements = spoiled.Get(name);
    for_each_row(name, [&](int64_t row, bool inside) {
      for (int64_t x = 0; inside && x < columns(name); ++x) {
        const double infinity = std::numeric_limits<double>::infinity();
        elements[static_cast<size_t>(row + x)] =
            generator() % 2 == 0 ? std::numeric_limits<double>::quiet_NaN() : infinity;
      }
    });
    spoiled.Set(name, elements);
  });
  ASSERT_TRUE(RunToCompletion(*engine, spoiled.computation(), spoiled.pointers()).ok());
  spoiled.computation().outputs().ForEach([&](TensorName name) {
    const std::vector<double> expected = clean.Get(name);
    const std::vector<double> got = spoiled.Get(name);
    for_each_row(name, [&](int64_t row, bool inside) {
      for (int64_t x = 0; !inside && x < columns(name); ++x) {
        ASSERT_EQ(got[static_cast<size_t>(row + x)], expected[static_cast<size_t>(row + x)]) << Name(name);
      }
    });
  });
}

TEST(CpuEngineTest, NanAndInfinityStayInTheirHeadBatchEntryAndSequence) {
  for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat64}) {
    for (CaseSpec spec : {DoubleBackward(dtype), FullJvp(dtype)}) {
      spec.query_len = 70;
      spec.key_len = 90;
      spec.batch = 2;
      for (Layout layout : {Layout::kBHND, Layout::kBNHD}) {
        spec.options.layout = layout;
        ExpectContained(spec, 0, 1);
        ExpectContained(spec, 1, 0);
      }
      spec.options.layout = Layout::kTHD;
      spec.options.cu_seqlens_q = {0, 3, 40, 41, 111};
      spec.options.cu_seqlens_k = {0, 20, 21, 60, 133};
      for (int64_t b = 0; b < 4; ++b) ExpectContained(spec, b, b % 2);
    }
  }
}

// A tile that the mask skips is not computed: a NaN in keys that nobody sees, or that only late queries see, reaches no
// query that is tiles away.
TEST(CpuEngineTest, NanDoesNotCrossTilesThatTheMaskSkips) {
  CaseSpec spec = DoubleBackward(DType::kFloat32);
  spec.query_len = spec.key_len = 2000;
  spec.options.window_right = 0;
  const std::unique_ptr<Engine> engine = cpu::CreateCpuEngine({2});
  Call clean(spec);
  Call spoiled(spec);
  for (TensorName name : {kK, kV, kUk, kUv}) {
    std::vector<double> elements = spoiled.Get(name);
    const int64_t width = name == kV || name == kUv ? spec.value_dim : spec.head_dim;
    for (int64_t x = 0; x < width; ++x) elements[static_cast<size_t>(1990 * width + x)] = std::nan("");
    spoiled.Set(name, elements);
  }
  for (const Call* call : {&clean, &spoiled}) {
    ASSERT_TRUE(RunToCompletion(*engine, call->computation(), call->pointers()).ok());
  }
  for (TensorName name : {kGq, kGdo}) {
    const int64_t width = name == kGdo ? spec.value_dim : spec.head_dim;
    const std::vector<double> expected = clean.Get(name);
    const std::vector<double> got = spoiled.Get(name);
    EXPECT_TRUE(std::isnan(got[static_cast<size_t>(1999 * width)]));
    for (int64_t i = 0; i < 1500 * width; ++i) {
      ASSERT_EQ(got[static_cast<size_t>(i)], expected[static_cast<size_t>(i)]) << Name(name) << " " << i;
    }
  }
}

TEST(CpuEngineTest, HostTensorsAreUsedInPlaceWhateverTheirAlignment) {
  const std::unique_ptr<Engine> engine = cpu::CreateCpuEngine({2});
  EXPECT_TRUE(engine->unified_memory());
  Call aligned(DoubleBackward(DType::kFloat32));
  ASSERT_TRUE(RunToCompletion(*engine, aligned.computation(), aligned.pointers()).ok());
  // 4 bytes past an alignment: in place. 1 byte past: copied.
  for (size_t offset : {4, 1}) {
    std::vector<std::vector<unsigned char>> memory;
    TensorPointers shifted;
    for (int i = 0; i < kNumTensorNames; ++i) {
      const auto name = static_cast<TensorName>(i);
      if (!aligned.computation().HasInput(name) && !aligned.computation().Wants(name)) continue;
      const auto bytes = static_cast<size_t>(aligned.problem().NumBytes(name));
      memory.emplace_back(bytes + 64 + offset);
      const size_t to_alignment = 64 - reinterpret_cast<uintptr_t>(memory.back().data()) % 64;
      unsigned char* data = memory.back().data() + to_alignment % 64 + offset;
      std::memcpy(data, aligned.pointers().Get(name), bytes);
      if (aligned.computation().Wants(name)) std::memset(data, 0xff, bytes);
      shifted.Set(name, data);
    }
    ASSERT_TRUE(RunToCompletion(*engine, aligned.computation(), shifted).ok());
    for (const auto& [name, bytes] : aligned.Outputs()) {
      EXPECT_EQ(std::memcmp(shifted.Get(name), bytes.data(), bytes.size()), 0) << Name(name);
    }
  }
}

TEST(CpuEngineTest, WrongLaunchesAreRefused) {
  const std::unique_ptr<Engine> engine = cpu::CreateCpuEngine({1});
  Call call(DoubleBackward(DType::kFloat32));
  const auto plan = engine->MakePlan(call.computation()).value();
  const auto stream = engine->CreateStream().value();
  void* workspace = engine->Allocate(plan->workspace_bytes()).value();
  const auto launch = [&](int slice, const TensorPointers& tensors, void* memory) {
    return engine->Launch(*plan, slice, tensors, memory, *stream);
  };
  EXPECT_EQ(launch(-1, call.pointers(), workspace).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(launch(plan->num_slices(), call.pointers(), workspace).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(launch(0, call.pointers(), nullptr).code(), absl::StatusCode::kInvalidArgument);
  TensorPointers without = call.pointers();
  without.Set(kUk, nullptr);
  EXPECT_EQ(launch(0, without, workspace).message(), "no address for tensor uk");
  EXPECT_TRUE(launch(0, call.pointers(), workspace).ok());
  engine->Free(workspace);
}

TEST(CpuEngineTest, AllocationsAreAlignedOrRefusedWithTheNumber) {
  const std::unique_ptr<Engine> engine = cpu::CreateCpuEngine({1});
  for (size_t bytes : {1, 255, 4097}) {
    void* pointer = engine->Allocate(bytes).value();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(pointer) % kTensorAlignment, 0u);
    std::memset(pointer, 1, bytes);
    engine->Free(pointer);
  }
  for (size_t bytes : {size_t{1} << 62, std::numeric_limits<size_t>::max()}) {
    const absl::Status status = engine->Allocate(bytes).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_NE(status.message().find(std::to_string(bytes)), std::string::npos) << status;
  }
}

TEST(CpuEngineTest, DeviceSaysWhatTheMachineIs) {
  const std::unique_ptr<Engine> engine = cpu::CreateCpuEngine({3});
  EXPECT_EQ(engine->device().name, "cpu");
  EXPECT_FALSE(engine->device().model.empty());
  EXPECT_EQ(engine->device().compute_units, 3);
  EXPECT_GT(engine->device().memory_bytes, int64_t{1} << 28);
  EXPECT_GT(engine->device().flops_per_second, 1e8);
  EXPECT_GE(cpu::CreateCpuEngine({})->device().compute_units, 1);
}

// Whether there is memory at an address.
bool Mapped(void* pointer) {
  unsigned char resident = 0;
  return mincore(pointer, 1, &resident) == 0;
}

// Blocks of many sizes, each freed beside ones that stay, would leave holes in a heap.
TEST(CpuEngineTest, HostMemoryThatIsFreedGoesBackToTheSystem) {
  const std::unique_ptr<Engine> engine = cpu::CreateCpuEngine({.threads = 1});
  std::vector<void*> blocks;
  for (size_t bytes : {size_t{1} << 20, size_t{3} << 20, size_t{256} << 10, size_t{9} << 20}) {
    blocks.push_back(engine->AllocateHost(bytes).value());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(blocks.back()) % kTensorAlignment, 0u);
    std::memset(blocks.back(), 1, bytes);
  }
  for (size_t i : {1, 2}) engine->FreeHost(blocks[i]);
  EXPECT_FALSE(Mapped(blocks[1]));
  EXPECT_FALSE(Mapped(blocks[2]));
  EXPECT_TRUE(Mapped(blocks[0]));
  for (size_t i : {0, 3}) engine->FreeHost(blocks[i]);
  EXPECT_FALSE(Mapped(blocks[3]));
  engine->FreeHost(engine->AllocateHost(1000).value());
}

}  // namespace
}  // namespace flashbob
