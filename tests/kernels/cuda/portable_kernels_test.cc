// Which of the portable kernels serve which problems, by their names: conformance cannot tell a slow kernel from a fast
// one. Needs no GPU: devices are described.
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "kernels/conformance/case.h"
#include "kernels/cuda/kernel_set.h"

namespace flashbob::cuda {
namespace {

using conformance::CaseSpec;
using enum TensorName;

// A100; L4 and the like, with less shared memory; one with as much as there is, without kernels of its own.
constexpr DeviceTraits kAmpere = {8, 0, 108, 163 << 10};
constexpr DeviceTraits kAda = {8, 9, 58, 99 << 10};
constexpr DeviceTraits kLargest = {9, 0, 132, 227 << 10};

CaseSpec Spec(DType dtype, int64_t dim, TensorSet cotangents = {kUq, kUk, kUv}) {
  CaseSpec spec;
  spec.operation = Operation::kDoubleBackward;
  spec.dtype = dtype;
  spec.optional_inputs = cotangents;
  spec.query_len = spec.key_len = 1024;
  spec.head_dim = spec.value_dim = dim;
  return spec;
}

KernelSet Select(const CaseSpec& spec, const DeviceTraits& device) {
  const absl::StatusOr<Computation> computation = conformance::MakeComputation(spec);
  EXPECT_TRUE(computation.ok()) << computation.status();
  const KernelSet set = SelectKernels(*computation, device);
  for (const PassKernel* kernel : {&set.forward, &set.rows, &set.columns}) {
    EXPECT_LE(kernel->shared_bytes, device.shared_bytes_per_block) << kernel->name;
    EXPECT_GT(kernel->flops_per_sm, 0) << kernel->name;
  }
  return set;
}

// "general", "plain", or nothing for a fast kernel.
std::string KindOf(const PassKernel& kernel) {
  for (const std::string_view kind : {"general", "plain"}) {
    if (std::string_view(kernel.name).substr(0, kind.size()) == kind) return std::string(kind);
  }
  return "fast";
}
std::string KindsOf(const KernelSet& set) {
  return KindOf(set.forward) + " " + KindOf(set.rows) + " " + KindOf(set.columns);
}

TEST(PortableKernelsTest, WholeAlignedHalfPrecisionIsFastOnEveryDevice) {
  for (DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (int64_t dim : {8, 40, 64, 72, 128}) {
      for (const DeviceTraits& device : {kAmpere, kAda}) {
        EXPECT_EQ(KindsOf(Select(Spec(dtype, dim), device)), "fast fast fast") << Name(dtype) << " " << dim;
      }
    }
  }
}

TEST(PortableKernelsTest, LeftOutCotangentsDropTheirProducts) {
  for (const TensorSet& given : {TensorSet{kUq}, {kUk}, {kUv}, {kUq, kUk}, {kUq, kUv}, {kUk, kUv}}) {
    for (int64_t dim : {64, 128}) {
      EXPECT_EQ(KindsOf(Select(Spec(DType::kBFloat16, dim, given), kLargest)).substr(5), "general general") << dim;
    }
  }
}

TEST(PortableKernelsTest, RowsOfAnyAlignmentAndWidthTakeTensorCores) {
  for (int64_t dim : {1, 33, 100, 127, 129, 200, 256}) {
    EXPECT_EQ(KindsOf(Select(Spec(DType::kFloat16, dim), kLargest)), "general general general") << dim;
  }
}

TEST(PortableKernelsTest, SmallDevicesKeepWhatFitsThem) {
  EXPECT_EQ(KindsOf(Select(Spec(DType::kBFloat16, 256), kAda)), "general plain plain");
  EXPECT_EQ(KindsOf(Select(Spec(DType::kBFloat16, 256), kAmpere)), "general general plain");
}

TEST(PortableKernelsTest, Tf32IsTakenOnlyWherePermittedAndRowsAreLong) {
  CaseSpec spec = Spec(DType::kFloat32, 64);
  EXPECT_EQ(KindsOf(Select(spec, kLargest)), "plain plain plain");
  spec.options.allow_tf32 = true;
  EXPECT_EQ(KindsOf(Select(spec, kLargest)), "general general general");
  spec.key_len = 63;
  EXPECT_EQ(KindsOf(Select(spec, kLargest)), "plain plain plain");
  spec.key_len = 1024;
  spec.options.window_left = 40;
  spec.options.window_right = 22;
  EXPECT_EQ(KindsOf(Select(spec, kLargest)), "plain plain plain");
  spec.options.window_left = 42;
  EXPECT_EQ(KindsOf(Select(spec, kLargest)), "general general general");
  EXPECT_EQ(KindsOf(Select(Spec(DType::kFloat32, 129), kLargest)), "plain plain plain");
}

TEST(PortableKernelsTest, DoubleTakesTensorCoresTo64) {
  EXPECT_EQ(KindsOf(Select(Spec(DType::kFloat64, 64), kLargest)), "general general general");
  EXPECT_EQ(KindsOf(Select(Spec(DType::kFloat64, 65), kLargest)), "plain plain plain");
}

TEST(PortableKernelsTest, ScalesThatAreNotPositiveTakePlainKernels) {
  for (double scale : {0.0, -0.125}) {
    CaseSpec spec = Spec(DType::kBFloat16, 64);
    spec.options.scale = scale;
    EXPECT_EQ(KindsOf(Select(spec, kLargest)), "plain plain plain") << scale;
  }
}

TEST(PortableKernelsTest, RowAlignmentIsThatOfTheNarrowerRow) {
  const auto alignment = [](DType dtype, int64_t head_dim, int64_t value_dim) {
    CaseSpec spec = Spec(dtype, head_dim);
    spec.value_dim = value_dim;
    return RowAlignment(conformance::MakeComputation(spec)->problem());
  };
  EXPECT_EQ(alignment(DType::kBFloat16, 64, 8), 16);
  EXPECT_EQ(alignment(DType::kBFloat16, 64, 6), 4);
  EXPECT_EQ(alignment(DType::kBFloat16, 33, 64), 2);
  EXPECT_EQ(alignment(DType::kFloat32, 4, 8), 16);
  EXPECT_EQ(alignment(DType::kFloat32, 3, 8), 4);
  EXPECT_EQ(alignment(DType::kFloat64, 2, 8), 16);
}

}  // namespace
}  // namespace flashbob::cuda
