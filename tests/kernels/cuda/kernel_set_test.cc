// Which kernels serve what, and how plans cut passes: on every machine, for devices that need not be there.
#include "kernels/cuda/kernel_set.h"

#include <gtest/gtest.h>

#include <string_view>
#include <vector>

#include "kernels/conformance/case.h"
#include "kernels/cuda/cuda_plan.h"
#include "kernels/cuda/hopper/kernels.h"
#include "kernels/cuda/parts.h"

namespace flashbob::cuda {
namespace {

using conformance::CaseSpec;
using conformance::MakeComputation;
using enum TensorName;

constexpr DeviceTraits kH200 = {
    .major = 9, .minor = 0, .multiprocessors = 132, .shared_bytes_per_block = 232448, .hopper_kernels = true};

// Whether this build has kernels for sm_90a at all.
bool Built() { return hopper::Rows(hopper::HalfType::kBFloat16, 64) != nullptr; }

CaseSpec Bob(int64_t heads, int64_t length, int64_t dim) {
  CaseSpec spec;
  spec.operation = Operation::kDoubleBackward;
  spec.optional_inputs = {kO, kLse, kUq, kUk, kUv};
  spec.dtype = DType::kBFloat16;
  spec.heads = spec.kv_heads = heads;
  spec.query_len = spec.key_len = length;
  spec.head_dim = spec.value_dim = dim;
  return spec;
}

Computation Of(const CaseSpec& spec) {
  absl::StatusOr<Computation> made = MakeComputation(spec);
  EXPECT_TRUE(made.ok()) << made.status();
  return *std::move(made);
}

bool OnHopper(const CaseSpec& spec, const DeviceTraits& device = kH200) {
  const KernelSet set = SelectKernels(Of(spec), device);
  const auto is_hopper = [](const PassKernel& kernel) { return std::string_view(kernel.name).starts_with("Hopper"); };
  EXPECT_EQ(is_hopper(set.rows), is_hopper(set.columns));
  EXPECT_EQ(is_hopper(set.rows), is_hopper(set.finish));
  return is_hopper(set.columns);
}

TEST(KernelSetTest, HopperServesSecondOrderInHalfPrecision) {
  if (!Built()) GTEST_SKIP() << "no sm_90a among this build's architectures";
  for (int64_t dim : {64, 128}) EXPECT_TRUE(OnHopper(Bob(16, 16384, dim)));
  CaseSpec spec = Bob(8, 1000, 64);
  spec.dtype = DType::kFloat16;
  spec.kv_heads = 2;
  spec.options.window_left = 100;
  spec.options.layout = Layout::kBNHD;
  spec.options.scale = -1;
  EXPECT_TRUE(OnHopper(spec));
  spec.options.probes = 3;
  spec.optional_inputs = {kUk};
  EXPECT_TRUE(OnHopper(spec));
  spec.operation = Operation::kJvp;
  spec.optional_inputs = {kTq, kDo};
  EXPECT_TRUE(OnHopper(spec));
  spec.head_dim = 40;
  spec.value_dim = 72;
  EXPECT_TRUE(OnHopper(spec));
}

CaseSpec FirstOrder(Operation operation, int64_t dim) {
  CaseSpec spec = Bob(16, 4096, dim);
  spec.operation = operation;
  spec.optional_inputs = {};
  if (operation == Operation::kBackward) spec.optional_inputs = {kO, kLse};
  return spec;
}

bool Hopper(const PassKernel& kernel) { return std::string_view(kernel.name).starts_with("Hopper"); }

TEST(KernelSetTest, HopperServesForwardAndBackwardInHalfPrecision) {
  if (!Built()) GTEST_SKIP() << "no sm_90a among this build's architectures";
  for (int64_t dim : {40, 64, 72, 128}) {
    EXPECT_TRUE(Hopper(SelectKernels(Of(FirstOrder(Operation::kForward, dim)), kH200).forward)) << dim;
    const KernelSet set = SelectKernels(Of(FirstOrder(Operation::kBackward, dim)), kH200);
    for (const PassKernel* kernel : {&set.forward, &set.row_dots, &set.columns, &set.finish}) {
      EXPECT_TRUE(Hopper(*kernel)) << kernel->name;
    }
  }
}

TEST(KernelSetTest, OrderedSumsShortSequencesAndOtherScalesStayWithThePortableKernels) {
  CaseSpec spec = FirstOrder(Operation::kBackward, 64);
  spec.options.deterministic = true;
  const KernelSet ordered = SelectKernels(Of(spec), kH200);
  EXPECT_FALSE(Hopper(ordered.columns));
  EXPECT_FALSE(Hopper(ordered.row_dots));
  EXPECT_FALSE(Hopper(ordered.finish));
  // Padding to whole tiles would be most of the workspace.
  spec = FirstOrder(Operation::kBackward, 64);
  spec.query_len = spec.key_len = 20;
  spec.batch = 1024;
  EXPECT_FALSE(Hopper(SelectKernels(Of(spec), kH200).columns));
  spec = FirstOrder(Operation::kForward, 64);
  spec.options.scale = -1;
  EXPECT_FALSE(Hopper(SelectKernels(Of(spec), kH200).forward));
}

TEST(KernelSetTest, WhatHopperDoesNotTakeGoesToThePortableKernels) {
  DeviceTraits device = kH200;
  device.hopper_kernels = false;
  EXPECT_FALSE(OnHopper(Bob(16, 16384, 64), device));
  device = kH200;
  device.shared_bytes_per_block = 99 << 10;
  EXPECT_FALSE(OnHopper(Bob(16, 16384, 64), device));
  CaseSpec spec = Bob(16, 1024, 64);
  spec.dtype = DType::kFloat32;
  EXPECT_FALSE(OnHopper(spec));
  EXPECT_FALSE(OnHopper(Bob(16, 1024, 60)));
  EXPECT_FALSE(OnHopper(Bob(16, 1024, 136)));
  spec = Bob(16, 1024, 64);
  spec.operation = Operation::kJvp;
  spec.optional_inputs = {kTq, kDo, kTdo};
  EXPECT_FALSE(OnHopper(spec));
  // Less than half of the products: the portable kernels drop the others.
  spec = Bob(16, 1024, 64);
  spec.optional_inputs = {kUv};
  EXPECT_FALSE(OnHopper(spec));
  // Padding to whole tiles would be most of the workspace.
  spec = Bob(16, 1, 64);
  spec.batch = 4096;
  EXPECT_FALSE(OnHopper(spec));
}

// performance.md: four fp32 scalars a query row and probe, one fp32 gQ a probe, 32 MiB.
TEST(CudaPlanTest, WorkspaceOfDoubleBackwardStaysWithinItsBar) {
  std::vector<CaseSpec> specs = {Bob(1, 1 << 20, 64), Bob(1, 1 << 20, 128), Bob(1, 4096, 64),    Bob(1, 16384, 128),
                                 Bob(16, 16385, 64),  Bob(64, 1, 128),      Bob(256, 1000, 128), Bob(3, 5000, 64)};
  for (size_t i = 0, count = specs.size(); i < count; ++i) {
    CaseSpec more = specs[i];
    more.options.window_right = 0;
    more.options.deterministic = true;
    more.options.probes = 2;
    specs.push_back(more);
    more.optional_inputs.Remove(kO);
    more.optional_inputs.Remove(kLse);
    more.options.probes = 0;
    specs.push_back(more);
  }
  for (const CaseSpec& spec : specs) {
    const Computation computation = Of(spec);
    const AttentionProblem& problem = computation.problem();
    const auto plan = CudaPlan::Create(computation, kH200, 0.020);
    ASSERT_TRUE(plan.ok()) << plan.status();
    // A recomputed lse is one scalar a row more.
    const int64_t rows = problem.total_queries() * problem.heads();
    const int64_t recomputed = computation.HasInput(kLse) ? 0 : rows * 4;
    const int64_t bar = rows * problem.probe_count() * 4 * (4 + problem.head_dim()) + recomputed + (int64_t{32} << 20);
    EXPECT_LE(static_cast<int64_t>((*plan)->workspace_bytes()), bar) << problem.ToString();
  }
}

TEST(CudaPlanTest, AMillionKeysAreCutIntoSlicesOfABoundedShare) {
  const Computation computation = Of(Bob(1, 1 << 20, 64));
  const auto plan = CudaPlan::Create(computation, kH200, 0.020);
  ASSERT_TRUE(plan.ok()) << plan.status();
  // 0.5 PFLOP/s sustained would be 10 TFLOP a slice; a slice may be estimated at a better rate, not at any.
  const double most = 0.020 * 900e12;
  int small = 0;
  for (int slice = 0; slice < (*plan)->num_slices(); ++slice) {
    EXPECT_LE((*plan)->slice_flops(slice), most);
    if ((*plan)->slice_flops(slice) < most / 6) ++small;
  }
  EXPECT_LE(small, 5) << "of " << (*plan)->num_slices() << " slices: walks are cut evenly";
}

// 8,192 blocks of queries are 62 waves of 132 and 8 over, whose walks take most of a slice each.
TEST(CudaPlanTest, ALastWaveOfFewIsASliceOfItsOwnWhereWalksAreLong) {
  if (!Built()) GTEST_SKIP() << "this build has no kernels for sm_90a";
  constexpr int64_t kLength = 1 << 20;
  const auto plan = CudaPlan::Create(Of(Bob(1, kLength, 64)), kH200, 0.020);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const double wave_of_rows = 132.0 * 2 * 128 * kLength * 5 * 64;
  for (int slice = 0; slice < (*plan)->num_slices(); ++slice) {
    EXPECT_LE((*plan)->slice_flops(slice), 1.001 * wave_of_rows) << "slice " << slice;
  }
}

// Its columns are estimated at 21.3 ms: cut at 20, their rest would be a slice of 82 items and the sums' conversion.
TEST(CudaPlanTest, APassThatTakesLittleLongerThanASliceIsNotCut) {
  if (!Built()) GTEST_SKIP() << "this build has no kernels for sm_90a";
  const auto plan = CudaPlan::Create(Of(Bob(16, 16384, 128)), kH200, 0.020);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ((*plan)->num_slices(), 2) << "rows, and columns with what follows them";
  const auto shorter = CudaPlan::Create(Of(Bob(16, 16384, 128)), kH200, 0.018);
  ASSERT_TRUE(shorter.ok()) << shorter.status();
  EXPECT_EQ((*shorter)->num_slices(), 3) << "more than an eighth too long";
}

TEST(PartsTest, ItemsThatFillTheDeviceAreNotDivided) {
  DivisiblePass pass = {
      .tiles = std::vector<int64_t>(132 * 8, 256), .tile_seconds = 2e-6, .wave = 132, .state_bytes = 65536};
  EXPECT_EQ(ChooseParts(pass, 32 << 20), 1);
}

TEST(PartsTest, FewItemsAreDividedUntilTheyFillTheDevice) {
  DivisiblePass pass = {.tiles = std::vector<int64_t>(32, 64), .tile_seconds = 2e-6, .wave = 132, .state_bytes = 65536};
  const int32_t parts = ChooseParts(pass, 32 << 20);
  EXPECT_GE(parts, 3);
  EXPECT_LE(32 * parts, 132);
  EXPECT_LT(SecondsInParts(pass, parts), 0.5 * SecondsInParts(pass, 1));
}

TEST(PartsTest, StatesBoundTheParts) {
  DivisiblePass pass = {
      .tiles = std::vector<int64_t>(32, 4096), .tile_seconds = 2e-6, .wave = 132, .state_bytes = 65536};
  EXPECT_EQ(ChooseParts(pass, 64 * 65536), 2);
  EXPECT_EQ(ChooseParts(pass, 0), 1);
}

TEST(PartsTest, UnevenWalksAreDividedWhereTheLongestWouldRunAlone) {
  DivisiblePass pass = {.tile_seconds = 2e-6, .wave = 132, .state_bytes = 65536};
  for (int64_t tiles = 256; tiles > 0; tiles -= 2) pass.tiles.push_back(tiles);
  EXPECT_GE(ChooseParts(pass, 32 << 20), 2);
}

TEST(PartsTest, PartsThatStartAtOnceEndWithTheLongest) {
  DivisiblePass pass = {.tiles = {3, 5, 7}, .tile_seconds = 2e-6, .wave = 6, .state_bytes = 65536};
  // To start, 4 of 7 tiles, to meet, and to read the sums of both.
  const double longest = 4e-6 + 4 * 2e-6 + 4e-6 + 2 * 65536 / 1e11;
  EXPECT_DOUBLE_EQ(SecondsInParts(pass, 2), longest);
  pass.tiles = {3, 5, 7, 3};  // the last one waits for others to end
  EXPECT_GT(SecondsInParts(pass, 2), longest);
}

TEST(PartsTest, ShortWalksAreNotWorthDividing) {
  DivisiblePass pass = {.tiles = std::vector<int64_t>(4, 2), .tile_seconds = 2e-6, .wave = 132, .state_bytes = 65536};
  EXPECT_EQ(ChooseParts(pass, 32 << 20), 1);
}

}  // namespace
}  // namespace flashbob::cuda
