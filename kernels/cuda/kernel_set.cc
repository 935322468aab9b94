#include "kernels/cuda/kernel_set.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "kernels/cuda/hopper/kernels.h"
#include "kernels/cuda/hopper/launch.h"
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

// The tensor-core kernels of one dtype and head-dim bucket: the general ones, and the fast ones of each pass, the
// fastest first.
struct TensorCoreKernels {
  using Choices = std::vector<const PassKernel& (*)()>;
  const mma::GeneralKernels& (*general)() = nullptr;
  const PassKernel& (*finish)() = nullptr;
  Choices forward = {};
  Choices rows = {};
  Choices first_columns = {};
  Choices second_columns = {};
};

TensorCoreKernels TensorCoreOf(DType dtype, int64_t dim) {
  if (dtype == DType::kBFloat16 && dim <= 64) {
    return {.general = &mma::GeneralBFloat16Dim64,
            .finish = &mma::FinishFragmentsBFloat16,
            .forward = {&mma::ForwardBFloat16Dim64},
            .rows = {&mma::RowsBFloat16Dim64},
            .first_columns = {&mma::FirstColumnsBFloat16Dim64},
            .second_columns = {&mma::SecondColumnsBFloat16Dim64, &mma::CompactSecondColumnsBFloat16Dim64}};
  }
  if (dtype == DType::kBFloat16 && dim <= 128) {
    return {.general = &mma::GeneralBFloat16Dim128,
            .finish = &mma::FinishFragmentsBFloat16,
            .forward = {&mma::ForwardBFloat16Dim128},
            .rows = {&mma::RowsBFloat16Dim128, &mma::CompactRowsBFloat16Dim128},
            .first_columns = {&mma::FirstColumnsBFloat16Dim128, &mma::CompactFirstColumnsBFloat16Dim128},
            .second_columns = {&mma::SecondColumnsBFloat16Dim128, &mma::CompactSecondColumnsBFloat16Dim128}};
  }
  if (dtype == DType::kFloat16 && dim <= 64) {
    return {.general = &mma::GeneralFloat16Dim64,
            .finish = &mma::FinishFragmentsFloat16,
            .forward = {&mma::ForwardFloat16Dim64},
            .rows = {&mma::RowsFloat16Dim64},
            .first_columns = {&mma::FirstColumnsFloat16Dim64},
            .second_columns = {&mma::SecondColumnsFloat16Dim64, &mma::CompactSecondColumnsFloat16Dim64}};
  }
  if (dtype == DType::kFloat16 && dim <= 128) {
    return {.general = &mma::GeneralFloat16Dim128,
            .finish = &mma::FinishFragmentsFloat16,
            .forward = {&mma::ForwardFloat16Dim128},
            .rows = {&mma::RowsFloat16Dim128, &mma::CompactRowsFloat16Dim128},
            .first_columns = {&mma::FirstColumnsFloat16Dim128, &mma::CompactFirstColumnsFloat16Dim128},
            .second_columns = {&mma::SecondColumnsFloat16Dim128, &mma::CompactSecondColumnsFloat16Dim128}};
  }
  switch (dtype) {
    case DType::kBFloat16:
      return {.general = &mma::GeneralBFloat16Dim256, .finish = &mma::FinishFragmentsBFloat16};
    case DType::kFloat16:
      return {.general = &mma::GeneralFloat16Dim256, .finish = &mma::FinishFragmentsFloat16};
    case DType::kFloat64:
      return {.general = &mma::GeneralFloat64Dim64, .finish = &mma::FinishFragmentsFloat64};
    case DType::kFloat32:
      return {.general = dim <= 64 ? &mma::GeneralTf32Dim64 : &mma::GeneralTf32Dim128,
              .finish = &mma::FinishFragmentsTf32};
  }
  return {};
}

// Kernels of one pass, the best first.
using Candidates = std::vector<PassKernel>;

Candidates Evaluate(const TensorCoreKernels::Choices& choices) {
  Candidates candidates;
  for (const auto& choice : choices) candidates.push_back(choice());
  return candidates;
}

// The first that fits the device's shared memory, or nothing.
std::optional<PassKernel> FirstThatFits(const Candidates& candidates, const DeviceTraits& device) {
  for (const PassKernel& kernel : candidates) {
    if (kernel.shared_bytes <= device.shared_bytes_per_block) return kernel;
  }
  return std::nullopt;
}

// TF32 rounds scores and dP, so a row that sees few keys, whose P . (dP - D) cancels, would miss its bar.
bool Tf32Serves(const AttentionProblem& problem) {
  constexpr int64_t kKeysOfARow = 64;
  const ProblemOptions& options = problem.options();
  if (!problem.allow_tf32()) return false;
  if (problem.total_keys() < kKeysOfARow * std::max<int64_t>(1, problem.batch())) return false;
  const bool open = options.window_left < 0 || options.window_right < 0;
  return open || options.window_left >= kKeysOfARow - options.window_right;
}

// Whether the tensor-core kernels take a problem: one of their buckets, and a scale that keeps -inf masked scores at
// -inf in fp32.
bool TensorCoresServe(const AttentionProblem& problem) {
  const int64_t dim = std::max(problem.head_dim(), problem.value_dim());
  const int64_t widest = problem.dtype() == DType::kFloat64 ? 64 : problem.dtype() == DType::kFloat32 ? 128 : 256;
  if (dim > widest || (problem.dtype() == DType::kFloat32 && !Tf32Serves(problem))) return false;
  // Rows of a head are this far apart at most, in elements; kernels count the bytes in 32 bits.
  const int64_t pitch = problem.layout() == Layout::kBHND ? dim : problem.heads() * dim;
  return problem.scale() > 1e-30 && problem.scale() < 1e30 && pitch < (int64_t{1} << 26);
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

int64_t Padded(int64_t rows, int64_t block) { return (rows + block - 1) / block * block; }

// Workspace that the kernels of sm_90a may take past what performance.md grants every kernel, in bytes.
constexpr double kMostPadding = 12 << 20;

// What the maps of packed sequences take of it.
double HopperMapBytes(const AttentionProblem& problem) {
  return problem.layout() == Layout::kTHD ? static_cast<double>(hopper::SequenceMapBytes(problem.batch())) : 0;
}

// Workspace of a column pass, in bytes: what its query rows take, and what padding them to `tile`, columns of padding,
// and maps add to that.
struct ColumnBytes {
  double rows;
  double padding;
};
ColumnBytes HopperColumnBytes(const AttentionProblem& problem, int32_t bucket, int32_t tile) {
  const bool packed = problem.layout() == Layout::kTHD;
  int64_t padded = 0;
  for (int64_t b = 0; b < (packed ? problem.batch() : 1); ++b) padded += Padded(problem.query_len(b), tile);
  if (!packed) padded *= problem.batch();
  const double bytes_of_float =
      static_cast<double>(sizeof(float)) * static_cast<double>(problem.heads() * problem.probe_count());
  const double rows = bytes_of_float * static_cast<double>(problem.total_queries()) *
                      static_cast<double>(problem.head_dim() + hopper::kRowScalars);
  const double all = bytes_of_float * static_cast<double>(padded) * (bucket + hopper::kRowScalars);
  return {.rows = rows, .padding = all - rows + HopperMapBytes(problem)};
}

// Whether kernels of sm_90a may take a problem: 16-byte rows, one of their buckets.
bool InReachOfHopper(const AttentionProblem& problem, const DeviceTraits& device) {
  constexpr int64_t kMostRows = int64_t{1} << 27;  // diagonals are counted in 30 bits
  const bool half = problem.dtype() == DType::kBFloat16 || problem.dtype() == DType::kFloat16;
  return device.hopper_kernels && half && std::max(problem.head_dim(), problem.value_dim()) <= 128 &&
         RowAlignment(problem) == 16 && std::abs(problem.scale()) < 1e30 && problem.batch() > 0 &&
         problem.total_queries() <= kMostRows && problem.total_keys() <= kMostRows &&
         HopperMapBytes(problem) <= kMostPadding;
}

hopper::HalfType HalfTypeOf(const AttentionProblem& problem) {
  return problem.dtype() == DType::kBFloat16 ? hopper::HalfType::kBFloat16 : hopper::HalfType::kFloat16;
}

int32_t HopperBucket(const AttentionProblem& problem) {
  return std::max(problem.head_dim(), problem.value_dim()) <= 64 ? 64 : 128;
}

// Puts the forward kernel of sm_90a into a set where it serves: masked scores stay at -inf under a positive scale only.
void UseHopperForward(const AttentionProblem& problem, const DeviceTraits& device, KernelSet& set) {
  if (!InReachOfHopper(problem, device) || problem.scale() <= 1e-30) return;
  const PassKernel* forward = hopper::ForwardOf(HalfTypeOf(problem), HopperBucket(problem));
  if (forward != nullptr && forward->shared_bytes <= device.shared_bytes_per_block) set.forward = *forward;
}

// Puts those for rows and columns into a set where they serve: backward where dq may be summed in any order, and second
// order. With neither tangent of the scores the portable kernels have less than half of the products to do.
bool UseHopperColumns(const Computation& computation, const DeviceTraits& device, KernelSet& set) {
  const AttentionProblem& problem = computation.problem();
  const bool ordered = problem.deterministic() && computation.outputs().HasAny({kDq, kGq, kTdq});
  const bool backward = computation.operation() == Operation::kBackward;
  const bool serves = backward ? problem.probe_count() == 1 && !ordered
                               : computation.inputs().HasAny({kUq, kUk, kTq, kTk}) && !computation.HasInput(kTdo);
  if (!serves || !InReachOfHopper(problem, device)) return false;
  const int32_t bucket = HopperBucket(problem);
  const int32_t tile = backward ? hopper::kFirstColumnQueries : hopper::ColumnQueries(bucket);
  const ColumnBytes bytes = HopperColumnBytes(problem, bucket, tile);
  // performance.md bounds the workspace of second order alone: backward may take as much again.
  if (bytes.padding > (backward ? std::max(kMostPadding, bytes.rows) : kMostPadding)) return false;
  const hopper::HalfType type = HalfTypeOf(problem);
  const PassKernel* rows = backward ? hopper::RowDotsOf(type, bucket) : hopper::Rows(type, bucket);
  const PassKernel* columns = backward  ? hopper::FirstColumnsOf(type, bucket)
                              : ordered ? hopper::OrderedSecondColumns(type, bucket)
                                        : hopper::SecondColumns(type, bucket);
  const PassKernel* finish = hopper::Finish(type, bucket);
  if (rows == nullptr || columns == nullptr || finish == nullptr ||
      std::max(rows->shared_bytes, columns->shared_bytes) > device.shared_bytes_per_block) {
    return false;
  }
  (backward ? set.row_dots : set.rows) = *rows;
  set.columns = *columns;
  set.finish = *finish;
  set.log2_columns = true;
  set.fragment_sums = true;
  set.sum_rows = set.scalar_rows = tile;
  set.sum_columns = bucket;
  set.always_sums = true;
  set.turns_of_tile = hopper::kTurnsOfTile;
  set.rows_power_shift = set.columns_power_shift = PowerShift(problem);
  return true;
}

}  // namespace

int32_t RowAlignment(const AttentionProblem& problem) {
  const int64_t bytes = (problem.head_dim() | problem.value_dim()) * static_cast<int64_t>(SizeOf(problem.dtype()));
  return bytes % 16 == 0 ? 16 : bytes % 4 == 0 ? 4 : 2;
}

KernelSet SelectKernels(const Computation& computation, const DeviceTraits& device) {
  const AttentionProblem& problem = computation.problem();
  const PlainKernels& plain = PlainOf(problem.dtype());
  KernelSet set;
  set.forward = plain.forward;
  set.rows = plain.rows;
  set.columns = plain.columns;
  set.row_dots = plain.row_dots;
  set.finish = plain.finish;
  if (!TensorCoresServe(problem)) {
    UseHopperForward(problem, device, set);
    UseHopperColumns(computation, device, set);
    return set;
  }

  const TensorCoreKernels fast = TensorCoreOf(problem.dtype(), std::max(problem.head_dim(), problem.value_dim()));
  const mma::GeneralKernels& general = fast.general();
  // Fast kernels before or behind the general ones, and not at all where they do not serve.
  const auto choose = [&](Candidates generals, const TensorCoreKernels::Choices& choices, bool whole) {
    const bool aligned = RowAlignment(problem) == 16;
    const Candidates fasts = aligned ? Evaluate(choices) : Candidates{};
    generals.insert(whole ? generals.begin() : generals.end(), fasts.begin(), fasts.end());
    std::optional<PassKernel> kernel = FirstThatFits(generals, device);
    constexpr double kUnalignedRate = 0.35;
    if (kernel.has_value() && !aligned) kernel->flops_per_sm *= kUnalignedRate;
    return kernel;
  };
  const auto given = [&](std::initializer_list<TensorName> names) {
    return std::any_of(names.begin(), names.end(), [&](TensorName name) { return computation.HasInput(name); });
  };
  const bool tangents = given({kUq, kUk, kUv, kTq, kTk, kTv});
  const bool whole = given({kUq, kTq}) && given({kUk, kTk}) && given({kUv, kTv});
  if (const auto kernel = choose({general.forward}, fast.forward, true)) set.forward = *kernel;
  UseHopperForward(problem, device, set);
  if (UseHopperColumns(computation, device, set)) return set;
  if (const auto kernel = choose({general.rows}, fast.rows, whole)) {
    set.rows = *kernel;
    set.rows_power_shift = PowerShift(problem);
  }
  const bool second = tangents && !computation.HasInput(kTdo);
  const Candidates generals =
      second ? Candidates{general.second_columns, general.columns} : Candidates{general.columns};
  const TensorCoreKernels::Choices columns = second      ? fast.second_columns
                                             : !tangents ? fast.first_columns
                                                         : TensorCoreKernels::Choices{};
  if (const auto kernel = choose(generals, columns, !tangents || whole)) {
    set.columns = *kernel;
    set.finish = fast.finish();
    set.log2_columns = true;
    set.fragment_sums = true;
    set.columns_power_shift = PowerShift(problem);
  }
  return set;
}

}  // namespace flashbob::cuda
