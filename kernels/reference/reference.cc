#include "kernels/reference/reference.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "absl/strings/str_cat.h"
#include "kernels/convert.h"
#include "kernels/reference/formulas.h"

namespace flashbob {
namespace {

using reference::EvaluateHead;
using reference::HeadOptions;
using reference::HeadResult;
using reference::Matrix;
using reference::Tensors;

using Elements = std::map<TensorName, std::vector<double>>;

// One unit of work: a query head of one sequence, for one probe.
struct Unit {
  int64_t probe;
  int64_t sequence;
  int64_t head;
};

// Where the rows of a head lie, by the words of protocol.md rather than AttentionProblem::StridesOf.
class Rows {
 public:
  Rows(const AttentionProblem& problem, TensorName name, const Unit& unit) {
    const bool query_side = IsQuerySide(name);
    const int64_t heads = query_side ? problem.heads() : problem.kv_heads();
    const int64_t head = query_side ? unit.head : unit.head / (problem.heads() / problem.kv_heads());
    const int64_t total = query_side ? problem.total_queries() : problem.total_keys();
    const int64_t probe = HasProbeAxis(name) && problem.probes() > 0 ? unit.probe : 0;
    count_ = query_side ? problem.query_len(unit.sequence) : problem.key_len(unit.sequence);
    const bool scalar = WidthOf(name) == Width::kNone;
    width_ = scalar ? 1 : WidthOf(name) == Width::kHeadDim ? problem.head_dim() : problem.value_dim();
    if (problem.layout() == Layout::kTHD) {
      const std::vector<int64_t>& starts = query_side ? problem.options().cu_seqlens_q : problem.options().cu_seqlens_k;
      const int64_t start = starts[static_cast<size_t>(unit.sequence)];
      first_ = scalar ? (probe * heads + head) * total + start : (probe * total + start) * heads + head;
      step_ = scalar ? 1 : heads;
    } else {
      const int64_t entry = probe * problem.batch() + unit.sequence;
      const bool rows_first = problem.layout() == Layout::kBNHD && !scalar;
      first_ = rows_first ? entry * count_ * heads + head : (entry * heads + head) * count_;
      step_ = rows_first ? heads : 1;
    }
  }

  Matrix Read(const std::vector<double>& elements) const {
    Matrix matrix(count_, width_);
    for (int64_t n = 0; n < count_; ++n) {
      for (int64_t x = 0; x < width_; ++x) matrix(n, x) = elements[Index(n, x)];
    }
    return matrix;
  }

  // Adds, because the heads of a group share their key side.
  void AddTo(std::vector<double>& elements, const Matrix& matrix) const {
    for (int64_t n = 0; n < count_; ++n) {
      for (int64_t x = 0; x < width_; ++x) elements[Index(n, x)] += matrix(n, x);
    }
  }

 private:
  size_t Index(int64_t n, int64_t x) const { return static_cast<size_t>((first_ + n * step_) * width_ + x); }

  int64_t count_;
  int64_t width_;
  int64_t first_;
  int64_t step_;
};

absl::Status CheckInputs(const Computation& computation, const Elements& inputs) {
  absl::Status status = absl::OkStatus();
  computation.inputs().ForEach([&](TensorName name) {
    const auto found = inputs.find(name);
    const auto needed = static_cast<size_t>(computation.problem().NumElements(name));
    if (found == inputs.end()) {
      status.Update(absl::InvalidArgumentError(absl::StrCat("the reference lacks input ", Name(name))));
    } else if (found->second.size() != needed) {
      status.Update(absl::InvalidArgumentError(
          absl::StrCat("input ", Name(name), " has ", found->second.size(), " elements; the problem needs ", needed)));
    }
  });
  return status;
}

HeadResult EvaluateUnit(const Computation& computation, const Elements& inputs, const Unit& unit,
                        std::optional<DType> rounding) {
  const AttentionProblem& problem = computation.problem();
  HeadOptions options;
  options.operation = computation.operation();
  options.scale = problem.scale();
  options.window_left = problem.options().window_left;
  options.window_right = problem.options().window_right;
  const bool bottom_right = problem.options().alignment == Alignment::kBottomRight;
  options.shift = bottom_right ? problem.key_len(unit.sequence) - problem.query_len(unit.sequence) : 0;
  options.rounding = rounding;
  Tensors tensors;
  computation.inputs().ForEach(
      [&](TensorName name) { tensors[name] = Rows(problem, name, unit).Read(inputs.at(name)); });
  return EvaluateHead(options, tensors);
}

}  // namespace

absl::StatusOr<ReferenceResult> ComputeReference(const Computation& computation, const Elements& inputs,
                                                 const ReferenceOptions& options) {
  if (absl::Status status = CheckInputs(computation, inputs); !status.ok()) return status;
  const AttentionProblem& problem = computation.problem();
  const bool probed =
      computation.operation() == Operation::kDoubleBackward || computation.operation() == Operation::kJvp;
  std::vector<Unit> units;
  for (int64_t probe = 0; probe < (probed ? problem.probe_count() : 1); ++probe) {
    for (int64_t sequence = 0; sequence < problem.batch(); ++sequence) {
      for (int64_t head = 0; head < problem.heads(); ++head) units.push_back({probe, sequence, head});
    }
  }

  std::vector<HeadResult> results(units.size());
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next++; i < units.size(); i = next++) {
      results[i] = EvaluateUnit(computation, inputs, units[i], options.rounding);
    }
  };
  const size_t cores = options.threads > 0 ? static_cast<size_t>(options.threads) : std::thread::hardware_concurrency();
  std::vector<std::thread> helpers;
  for (size_t i = 1; i < std::min(cores, units.size()); ++i) helpers.emplace_back(work);
  work();
  for (std::thread& helper : helpers) helper.join();

  ReferenceResult result;
  computation.outputs().ForEach([&](TensorName name) {
    const auto elements = static_cast<size_t>(problem.NumElements(name));
    ReferenceTensor& output = result.outputs[name];
    output.value.assign(elements, 0);
    output.abs.assign(elements, 0);
    for (size_t i = 0; i < units.size(); ++i) {
      const Rows rows(problem, name, units[i]);
      rows.AddTo(output.value, results[i].value.at(name));
      rows.AddTo(output.abs, results[i].abs.at(name));
    }
    if (options.rounding.has_value()) {
      const DType dtype = WidthOf(name) == Width::kNone ? StatisticsDType(*options.rounding) : *options.rounding;
      for (double& x : output.value) x = RoundTo(dtype, x);
    }
  });
  for (const HeadResult& head : results) {
    result.max_abs_score = std::max(result.max_abs_score, head.max_abs_score);
  }
  return result;
}

}  // namespace flashbob
