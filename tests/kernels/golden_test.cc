// Real input against golden outputs, which PyTorch's autograd made (tests/data/README.md).
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "client/cli/safetensors.h"
#include "kernels/conformance/error.h"
#include "kernels/conformance/host_tensor.h"
#include "kernels/convert.h"
#include "kernels/reference/reference.h"
#include "tests/kernels/engines_under_test.h"

namespace flashbob {
namespace {

using conformance::BarKind;
using conformance::HostTensor;
using conformance::OutputBar;
using conformance::RelativeError;
using enum TensorName;

using Elements = std::map<TensorName, std::vector<double>>;

// A tensor of [1, heads, rows, width], or [1, heads, rows].
struct GoldenTensor {
  Shape shape;
  std::vector<double> values;

  int64_t heads() const { return shape[1]; }

  // Heads 0, step, 2 step, ... below `end`.
  std::vector<double> Heads(int64_t end, int64_t step) const {
    std::vector<double> selected;
    const auto head_size = static_cast<int64_t>(values.size()) / heads();
    for (int64_t head = 0; head < end; head += step) {
      selected.insert(selected.end(), values.begin() + head * head_size, values.begin() + (head + 1) * head_size);
    }
    return selected;
  }
};

struct GoldenFile {
  std::map<TensorName, GoldenTensor> tensors;
  safetensors::Metadata metadata;

  int64_t Integer(const std::string& key) const { return std::stoll(metadata.at(key)); }
};

GoldenFile ReadFile(const std::string& name) {
  absl::StatusOr<safetensors::File> file = safetensors::File::Open(std::string(FLASHBOB_TEST_DATA "/") + name);
  EXPECT_TRUE(file.ok()) << file.status();
  GoldenFile golden;
  golden.metadata = file->metadata();
  for (const safetensors::Tensor& tensor : file->tensors()) {
    const DType dtype = tensor.dtype == safetensors::DType::kF64 ? DType::kFloat64 : DType::kFloat32;
    golden.tensors[ParseTensorName(tensor.name).value()] = {
        tensor.shape, ToDoubles(dtype, tensor.data.data(), tensor.data.size() / SizeOf(dtype))};
  }
  return golden;
}

// One golden case.
class GoldenTest : public testing::TestWithParam<const char*> {
 protected:
  // The computation of an operation on the case's problem, taking the input as fp64 or fp32.
  Computation MakeComputation(Operation operation, DType dtype) const {
    ProblemOptions options;
    options.window_left = golden_.Integer("window_left");
    options.window_right = golden_.Integer("window_right");
    std::vector<TensorInfo> inputs;
    for (const auto& [name, tensor] : input_.tensors) {
      if (!Computation::AllowedInputs(operation).Has(name)) continue;
      Shape shape = tensor.shape;
      if (!IsQuerySide(name)) shape[1] /= golden_.Integer("kv_head_step");
      inputs.push_back({name, dtype, shape});
    }
    absl::StatusOr<Computation> computation = Computation::Create(operation, options, inputs, {});
    EXPECT_TRUE(computation.ok()) << computation.status();
    return *std::move(computation);
  }

  Elements Inputs() const {
    Elements inputs;
    for (const auto& [name, tensor] : input_.tensors) {
      inputs[name] = tensor.Heads(tensor.heads(), IsQuerySide(name) ? 1 : golden_.Integer("kv_head_step"));
    }
    return inputs;
  }

  // Outputs of all operations, one after the other.
  std::map<TensorName, ReferenceTensor> ComputeAll() const {
    std::map<TensorName, ReferenceTensor> all;
    for (Operation operation : {Operation::kForward, Operation::kBackward, Operation::kDoubleBackward}) {
      absl::StatusOr<ReferenceResult> result = ComputeReference(MakeComputation(operation, DType::kFloat64), Inputs());
      EXPECT_TRUE(result.ok()) << result.status();
      all.merge(result->outputs);
    }
    return all;
  }

  const GoldenFile input_ = ReadFile("real_input.safetensors");
  const GoldenFile golden_ = ReadFile(std::string("golden_") + GetParam() + ".safetensors");
  const GoldenFile golden_fp64_ = ReadFile(std::string("golden_") + GetParam() + "_fp64.safetensors");
};

TEST_P(GoldenTest, ReferenceIsGoldenToTwelveDigits) {
  const auto computed = ComputeAll();
  EXPECT_EQ(golden_fp64_.tensors.size(), 9u);
  for (const auto& [name, golden] : golden_fp64_.tensors) {
    ReferenceTensor expected = {golden.values, golden.values};
    const std::vector<double>& all = computed.at(name).value;
    const std::vector<double> first_heads(all.begin(), all.begin() + static_cast<int64_t>(golden.values.size()));
    EXPECT_LE(RelativeError(first_heads, expected, DType::kFloat64), 1e-12) << Name(name);
  }
}

TEST_P(GoldenTest, ReferenceIsGoldenInAllHeads) {
  const auto computed = ComputeAll();
  EXPECT_EQ(golden_.tensors.size(), 4u);
  for (const auto& [name, golden] : golden_.tensors) {
    EXPECT_LE(RelativeError(golden.values, computed.at(name), DType::kFloat64), 1e-7) << Name(name);  // fp32's rounding
  }
}

TEST_P(GoldenTest, EnginesKeepTheirBarsOnRealInput) {
  const auto reference = ComputeAll();
  double max_abs_score = 0;
  {
    absl::StatusOr<ReferenceResult> forward =
        ComputeReference(MakeComputation(Operation::kForward, DType::kFloat64), Inputs());
    ASSERT_TRUE(forward.ok()) << forward.status();
    max_abs_score = forward->max_abs_score;
  }
  for (const EngineUnderTest& engine : EnginesUnderTest()) {
    const conformance::Runner runner = engine.make_runner();
    for (DType dtype : {DType::kFloat32, DType::kFloat64}) {
      const Computation computation = MakeComputation(Operation::kDoubleBackward, dtype);
      const AttentionProblem& problem = computation.problem();
      TensorPointers pointers;
      std::map<TensorName, HostTensor> tensors;
      for (const auto& [name, values] : Inputs()) {
        pointers.Set(name, tensors.try_emplace(name, dtype, values).first->second.data());
      }
      for (const auto& [name, golden] : golden_.tensors) {
        pointers.Set(name, tensors.try_emplace(name, dtype, golden.values.size()).first->second.data());
      }
      const absl::Status status = runner(computation, pointers);
      ASSERT_TRUE(status.ok()) << status;
      for (const auto& [name, golden] : golden_.tensors) {
        const std::vector<double> got = tensors.at(name).Values();
        const double bar = OutputBar(engine.bars, computation, name, reference.at(name), max_abs_score, 0);
        // Against PyTorch's own fp64 values, of the heads whose are kept.
        const std::vector<double>& exact = golden_fp64_.tensors.at(name).values;
        const std::vector<double> first_heads(got.begin(), got.begin() + static_cast<int64_t>(exact.size()));
        EXPECT_LE(RelativeError(first_heads, {exact, exact}, dtype), bar) << engine.name << " " << Name(name);
        // And of all heads, where fp32's rounding is part of the golden values.
        EXPECT_LE(RelativeError(got, {golden.values, golden.values}, dtype), bar + 1e-7)
            << engine.name << " " << Name(name) << " " << problem.ToString();
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, GoldenTest, testing::Values("full", "causal", "gqa", "window"),
                         [](const testing::TestParamInfo<const char*>& info) { return info.param; });

}  // namespace
}  // namespace flashbob
