#include "kernels/cuda/kernel_set.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cuda/mma/kernels.h"

namespace flashbob::cuda {
namespace {

using enum TensorName;

const PlainKernels& PlainOf(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16:
      return PlainBFloat16();
    case DType::kFloat16:
      return PlainFloat16();
    case DType::kFloat32:
      return PlainFloat32();
    case DType::kFloat64:
      return PlainFloat64();
  }
  return PlainFloat64();
}

// The tensor-core kernels of one dtype and head-dim bucket: of each pass the fastest first.
struct TensorCoreKernels {
  using Choices = std::vector<const PassKernel& (*)()>;
  Choices forward;
  Choices rows;
  Choices first_columns;
  Choices second_columns;
  Choices tangent_columns;
  const PassKernel& (*finish)() = nullptr;
};

TensorCoreKernels TensorCoreOf(DType dtype, int64_t dim) {
  if (dtype == DType::kBFloat16 && dim == 64) {
    return {.forward = {&mma::ForwardBFloat16Dim64},
            .rows = {&mma::RowsBFloat16Dim64},
            .first_columns = {&mma::FirstColumnsBFloat16Dim64},
            .second_columns = {&mma::SecondColumnsBFloat16Dim64, &mma::CompactSecondColumnsBFloat16Dim64},
            .tangent_columns = {&mma::TangentColumnsBFloat16Dim64},
            .finish = &mma::FinishFragmentsBFloat16};
  }
  if (dtype == DType::kBFloat16 && dim == 128) {
    return {.forward = {&mma::ForwardBFloat16Dim128},
            .rows = {&mma::RowsBFloat16Dim128, &mma::CompactRowsBFloat16Dim128},
            .first_columns = {&mma::FirstColumnsBFloat16Dim128, &mma::CompactFirstColumnsBFloat16Dim128},
            .second_columns = {&mma::SecondColumnsBFloat16Dim128, &mma::CompactSecondColumnsBFloat16Dim128},
            .tangent_columns = {&mma::TangentColumnsBFloat16Dim128},
            .finish = &mma::FinishFragmentsBFloat16};
  }
  if (dtype == DType::kFloat16 && dim == 64) {
    return {.forward = {&mma::ForwardFloat16Dim64},
            .rows = {&mma::RowsFloat16Dim64},
            .first_columns = {&mma::FirstColumnsFloat16Dim64},
            .second_columns = {&mma::SecondColumnsFloat16Dim64, &mma::CompactSecondColumnsFloat16Dim64},
            .tangent_columns = {&mma::TangentColumnsFloat16Dim64},
            .finish = &mma::FinishFragmentsFloat16};
  }
  if (dtype == DType::kFloat16 && dim == 128) {
    return {.forward = {&mma::ForwardFloat16Dim128},
            .rows = {&mma::RowsFloat16Dim128, &mma::CompactRowsFloat16Dim128},
            .first_columns = {&mma::FirstColumnsFloat16Dim128, &mma::CompactFirstColumnsFloat16Dim128},
            .second_columns = {&mma::SecondColumnsFloat16Dim128, &mma::CompactSecondColumnsFloat16Dim128},
            .tangent_columns = {&mma::TangentColumnsFloat16Dim128},
            .finish = &mma::FinishFragmentsFloat16};
  }
  return {};
}

// The first that fits the device's shared memory, or null.
const PassKernel* FirstThatFits(const TensorCoreKernels::Choices& choices, const DeviceTraits& device) {
  for (const auto& choice : choices) {
    if (choice().shared_bytes <= device.shared_bytes_per_block) return &choice();
  }
  return nullptr;
}

// Whether the tensor-core kernels take a problem: 16-byte rows, one of their buckets, and a scale that keeps -inf
// masked scores at -inf in fp32.
bool TensorCoresServe(const AttentionProblem& problem) {
  const bool half = problem.dtype() == DType::kBFloat16 || problem.dtype() == DType::kFloat16;
  const int64_t dim = std::max(problem.head_dim(), problem.value_dim());
  // Rows of a head are this far apart at most, in elements; kernels count the bytes in 32 bits.
  const int64_t pitch = problem.layout() == Layout::kBHND ? dim : problem.heads() * dim;
  return half && dim <= 128 && problem.head_dim() % 8 == 0 && problem.value_dim() % 8 == 0 && problem.scale() > 1e-30 &&
         problem.scale() < 1e30 && pitch < (int64_t{1} << 26);
}

// A row of n visible keys has P about 1/n; fp16's normal range ends at 2^-14. The shift brings 1/n to 2^-10, and no
// higher: what it gains for small P it takes from the range of Y, which holds products of large gradients.
int32_t PowerShift(const AttentionProblem& problem) {
  if (problem.dtype() != DType::kFloat16) return 0;
  int64_t longest = 1;
  for (int64_t b = 0; b < (problem.layout() == Layout::kTHD ? problem.batch() : std::min<int64_t>(1, problem.batch()));
       ++b) {
    longest = std::max(longest, problem.key_len(b));
  }
  const ProblemOptions& options = problem.options();
  if (options.window_left >= 0 && options.window_right >= 0) {
    longest = std::min(longest, options.window_left + options.window_right + 1);
  }
  return std::clamp(static_cast<int32_t>(std::log2(static_cast<double>(longest))) - 10, 0, 10);
}

}  // namespace

KernelSet SelectKernels(const Computation& computation, const DeviceTraits& device) {
  const AttentionProblem& problem = computation.problem();
  const PlainKernels& plain = PlainOf(problem.dtype());
  KernelSet set;
  set.forward = plain.forward;
  set.rows = plain.rows;
  set.columns = plain.columns;
  set.row_dots = plain.row_dots;
  set.finish = plain.finish;
  if (!TensorCoresServe(problem)) return set;

  const TensorCoreKernels fast =
      TensorCoreOf(problem.dtype(), std::max(problem.head_dim(), problem.value_dim()) <= 64 ? 64 : 128);
  if (const PassKernel* kernel = FirstThatFits(fast.forward, device)) set.forward = *kernel;
  if (const PassKernel* kernel = FirstThatFits(fast.rows, device)) {
    set.rows = *kernel;
    set.rows_power_shift = PowerShift(problem);
  }
  const bool tangents = computation.inputs().HasAny({kUq, kUk, kUv, kTq, kTk, kTv});
  const TensorCoreKernels::Choices& columns = !tangents                    ? fast.first_columns
                                              : computation.HasInput(kTdo) ? fast.tangent_columns
                                                                           : fast.second_columns;
  if (const PassKernel* kernel = FirstThatFits(columns, device)) {
    set.columns = *kernel;
    set.finish = fast.finish();
    set.log2_columns = true;
    set.fragment_sums = true;
    set.columns_power_shift = PowerShift(problem);
  }
  return set;
}

}  // namespace flashbob::cuda
