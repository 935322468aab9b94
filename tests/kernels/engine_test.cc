// RunToCompletion, on a device made of host memory that counts what it is asked for and fails where it is told to.
#include "kernels/engine.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/conformance/case.h"
#include "kernels/conformance/host_tensor.h"
#include "tests/kernels/reference_runner.h"

namespace flashbob {
namespace {

using conformance::CaseSpec;
using conformance::ConformanceCase;
using conformance::HostTensor;
using enum TensorName;

constexpr int kSlices = 3;

class FakePlan final : public Plan {
 public:
  explicit FakePlan(const Computation& computation) : Plan(computation) {}
  size_t workspace_bytes() const override { return 1000; }
  int num_slices() const override { return kSlices; }
  double slice_flops(int) const override { return computation().flops() / kSlices; }
};

// What a fake device was asked for.
struct Log {
  std::set<void*> live;  // allocations
  int allocations = 0;
  std::vector<int> slices;
  std::vector<std::string> events;  // "launch", "copy", "synchronize", "free"
};

class FakeStream final : public Stream {
 public:
  explicit FakeStream(Log& log) : log_(log) {}
  absl::Status Synchronize() override {
    log_.events.push_back("synchronize");
    return absl::OkStatus();
  }

 private:
  Log& log_;
};

// What a fake device fails at.
struct Faults {
  int allocation = -1;  // this one fails
  int slice = -1;       // this launch fails
  bool plan = false;
};

// Computes by the reference in its last slice.
class FakeEngine final : public Engine {
 public:
  explicit FakeEngine(bool unified, Faults faults = {}) : unified_(unified), faults_(faults) {}
  ~FakeEngine() override { EXPECT_TRUE(log_.live.empty()) << log_.live.size() << " allocations leaked"; }

  const Log& log() const { return log_; }
  const DeviceInfo& device() const override { return device_; }

  absl::StatusOr<std::unique_ptr<const Plan>> MakePlan(const Computation& computation) const override {
    if (faults_.plan) return absl::UnimplementedError("not here");
    return std::make_unique<FakePlan>(computation);
  }

  absl::Status Launch(const Plan& plan, int slice, const TensorPointers& tensors, void* workspace, Stream&) override {
    EXPECT_EQ(log_.live.count(workspace), 1u);
    log_.events.push_back("launch");
    log_.slices.push_back(slice);
    if (slice == faults_.slice) return absl::UnavailableError("device lost");
    std::memset(workspace, 0x55, plan.workspace_bytes());
    if (slice + 1 < plan.num_slices()) return absl::OkStatus();
    (plan.computation().inputs() | plan.computation().outputs()).ForEach([&](TensorName name) {
      EXPECT_EQ(log_.live.count(tensors.Get(name)), unified_ && !copies_expected_ ? 0u : 1u) << Name(name);
    });
    return RunReference(plan.computation(), tensors);
  }

  absl::StatusOr<std::unique_ptr<Stream>> CreateStream() override { return std::make_unique<FakeStream>(log_); }
  bool unified_memory() const override { return unified_; }

  absl::StatusOr<void*> Allocate(size_t bytes) override {
    if (log_.allocations++ == faults_.allocation) {
      return absl::ResourceExhaustedError(absl::StrCat("no ", bytes, " bytes"));
    }
    void* pointer = std::malloc(bytes);
    log_.live.insert(pointer);
    return pointer;
  }
  void Free(void* pointer) override {
    EXPECT_EQ(log_.live.erase(pointer), 1u);
    log_.events.push_back("free");
    std::free(pointer);
  }
  absl::StatusOr<void*> AllocateHost(size_t bytes) override { return Allocate(bytes); }
  void FreeHost(void* pointer) override { Free(pointer); }
  absl::Status CopyToDevice(void* device, const void* host, size_t bytes, Stream&) override {
    log_.events.push_back("copy");
    std::memcpy(device, host, bytes);
    return absl::OkStatus();
  }
  absl::Status CopyToHost(void* host, const void* device, size_t bytes, Stream&) override {
    log_.events.push_back("copy");
    std::memcpy(host, device, bytes);
    return absl::OkStatus();
  }

  void ExpectCopies() { copies_expected_ = true; }

 private:
  bool unified_;
  bool copies_expected_ = false;
  Faults faults_;
  Log log_;
  DeviceInfo device_;
};

// A backward: 4 inputs, 3 outputs, one workspace.
class RunToCompletionTest : public testing::Test {
 protected:
  RunToCompletionTest() : case_(MakeCase()) {
    const AttentionProblem& problem = case_.computation().problem();
    const std::map<TensorName, std::vector<double>> inputs = MakeInputs(case_).value();
    for (const auto& [name, values] : inputs) {
      pointers_.Set(name, tensors_.try_emplace(name, problem.DTypeOf(name), values).first->second.data());
    }
    case_.computation().outputs().ForEach([&](TensorName name) {
      const auto elements = static_cast<size_t>(problem.NumElements(name));
      expected_.try_emplace(name, problem.DTypeOf(name), elements);
      pointers_.Set(name, tensors_.try_emplace(name, problem.DTypeOf(name), elements).first->second.data());
    });
    TensorPointers expected = pointers_;
    for (auto& [name, tensor] : expected_) expected.Set(name, tensor.data());
    EXPECT_TRUE(RunReference(case_.computation(), expected).ok());
  }

  static ConformanceCase MakeCase() {
    CaseSpec spec;
    spec.operation = Operation::kBackward;
    spec.query_len = 5;
    spec.key_len = 7;
    return ConformanceCase::Create(spec).value();
  }

  void ExpectOutputs(const TensorPointers& pointers) {
    for (const auto& [name, tensor] : expected_) {
      EXPECT_EQ(std::memcmp(pointers.Get(name), tensor.data(), tensor.bytes()), 0) << Name(name);
    }
  }

  const ConformanceCase case_;
  std::map<TensorName, HostTensor> tensors_;
  std::map<TensorName, HostTensor> expected_;
  TensorPointers pointers_;
};

TEST_F(RunToCompletionTest, CopiesInLaunchesEverySliceInOrderAndCopiesOut) {
  FakeEngine engine(/*unified=*/false);
  ASSERT_TRUE(RunToCompletion(engine, case_.computation(), pointers_).ok());
  EXPECT_EQ(engine.log().slices, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(engine.log().allocations, 8);
  ExpectOutputs(pointers_);
  const std::vector<std::string> expected = {"copy",   "copy", "copy", "copy", "launch",     "launch",
                                             "launch", "copy", "copy", "copy", "synchronize"};
  ASSERT_GE(engine.log().events.size(), expected.size());
  EXPECT_EQ(std::vector<std::string>(engine.log().events.begin(),
                                     engine.log().events.begin() + static_cast<std::ptrdiff_t>(expected.size())),
            expected);
}

TEST_F(RunToCompletionTest, UnifiedMemoryIsUsedInPlace) {
  FakeEngine engine(/*unified=*/true);
  ASSERT_TRUE(RunToCompletion(engine, case_.computation(), pointers_).ok());
  EXPECT_EQ(engine.log().allocations, 1);  // the workspace
  ExpectOutputs(pointers_);
}

TEST_F(RunToCompletionTest, UnalignedHostTensorsAreCopied) {
  FakeEngine engine(/*unified=*/true);
  engine.ExpectCopies();
  std::map<TensorName, std::vector<char>> unaligned;
  TensorPointers pointers;
  for (auto& [name, tensor] : tensors_) {
    std::vector<char>& bytes = unaligned[name];
    bytes.resize(tensor.bytes() + 1);
    std::memcpy(bytes.data() + 1, tensor.data(), tensor.bytes());
    pointers.Set(name, bytes.data() + 1);
  }
  ASSERT_TRUE(RunToCompletion(engine, case_.computation(), pointers).ok());
  EXPECT_EQ(engine.log().allocations, 8);
  ExpectOutputs(pointers);
}

TEST_F(RunToCompletionTest, FailedAllocationFreesThoseBefore) {
  for (int failing = 0; failing < 8; ++failing) {
    FakeEngine engine(/*unified=*/false, {failing, -1, false});
    const absl::Status status = RunToCompletion(engine, case_.computation(), pointers_);
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << failing;
    EXPECT_TRUE(engine.log().slices.empty());
  }
}

TEST_F(RunToCompletionTest, FailedLaunchStopsAndWaitsBeforeFreeing) {
  FakeEngine engine(/*unified=*/false, {-1, 1, false});
  EXPECT_EQ(RunToCompletion(engine, case_.computation(), pointers_), absl::UnavailableError("device lost"));
  EXPECT_EQ(engine.log().slices, (std::vector<int>{0, 1}));
  std::vector<std::string> after_launch(engine.log().events.end() - 9, engine.log().events.end());
  EXPECT_EQ(after_launch.front(), "synchronize");
  EXPECT_EQ(after_launch.back(), "free");
}

TEST_F(RunToCompletionTest, RefusedPlanIsReturned) {
  FakeEngine engine(/*unified=*/false, {-1, -1, true});
  EXPECT_EQ(RunToCompletion(engine, case_.computation(), pointers_), absl::UnimplementedError("not here"));
  EXPECT_EQ(engine.log().allocations, 0);
}

}  // namespace
}  // namespace flashbob
