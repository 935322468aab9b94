#include "kernels/conformance/error.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/convert.h"

namespace flashbob::conformance {
namespace {

constexpr int64_t kManyElements = 4096;
constexpr double kManyEffectiveElements = 256;
constexpr double kFewEffectiveElements = 64;
constexpr int64_t kLongSequence = 1024;

bool IsHalf(DType dtype) { return dtype == DType::kBFloat16 || dtype == DType::kFloat16; }

// Half the distance from 1 to the next number.
double UnitRoundoff(DType dtype) { return dtype == DType::kBFloat16 ? 0x1p-8 : 0x1p-11; }

bool IsFullAndLong(const AttentionProblem& problem) {
  const ProblemOptions& options = problem.options();
  if (options.layout == Layout::kTHD || options.window_left >= 0 || options.window_right >= 0) return false;
  return problem.batch() > 0 && std::min(problem.query_len(0), problem.key_len(0)) >= kLongSequence;
}

}  // namespace

double RelativeError(const std::vector<double>& got, const ReferenceTensor& reference, DType dtype) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (got.size() != reference.value.size()) return kInfinity;
  double difference = 0;
  double norm = 0;
  double abs_norm = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double expected = RoundTo(dtype, reference.value[i]);
    if (!std::isfinite(expected)) {
      const bool same = std::isnan(expected) ? std::isnan(got[i]) : got[i] == expected;
      if (!same) return kInfinity;
      continue;
    }
    if (!std::isfinite(got[i])) return kInfinity;
    const double distance = got[i] - reference.value[i];
    difference += distance * distance;
    norm += reference.value[i] * reference.value[i];
    abs_norm += reference.abs[i] * reference.abs[i];
  }
  if (difference == 0) return 0;
  return std::sqrt(difference) / std::max(std::sqrt(norm), 0.01 * std::sqrt(abs_norm));
}

double ErrorBar(BarKind kind, DType dtype, bool allow_tf32) {
  const bool cpu = kind == BarKind::kCpu;
  switch (dtype) {
    case DType::kBFloat16:
      return cpu ? 2.0e-3 : 2.7e-3;
    case DType::kFloat16:
      return cpu ? 3e-4 : 4e-4;
    case DType::kFloat32:
      return !cpu && allow_tf32 ? 1.5e-3 : 2e-6;
    case DType::kFloat64:
      return 1e-12;
  }
  return 0;
}

double EffectiveElements(const std::vector<double>& values) {
  double squares = 0;
  double fourth_powers = 0;
  for (double x : values) {
    if (!std::isfinite(x)) continue;
    squares += x * x;
    fourth_powers += x * x * x * x;
  }
  return fourth_powers > 0 ? squares * squares / fourth_powers : 0;
}

bool ErrorBarHolds(BarKind kind, const Computation& computation, TensorName output, const ReferenceTensor& reference) {
  const AttentionProblem& problem = computation.problem();
  if (!IsHalf(problem.dtype())) return true;
  if (problem.NumElements(output) < kManyElements) return false;
  if (EffectiveElements(reference.value) < kManyEffectiveElements) return false;
  return kind == BarKind::kCpu ? !computation.HasInput(TensorName::kO) : IsFullAndLong(problem);
}

double OutputBar(BarKind kind, const Computation& computation, TensorName output, const ReferenceTensor& reference,
                 double max_abs_score, double rounded_error) {
  const AttentionProblem& problem = computation.problem();
  const double row = ErrorBar(kind, problem.dtype(), problem.allow_tf32());
  if (!IsHalf(problem.dtype())) return row * std::max(1.0, max_abs_score / 4);
  if (ErrorBarHolds(kind, computation, output, reference)) return row;
  const bool few = EffectiveElements(reference.value) < kFewEffectiveElements;
  return std::max({row, 2 * rounded_error, few ? 2 * UnitRoundoff(problem.dtype()) : 0});
}

}  // namespace flashbob::conformance
