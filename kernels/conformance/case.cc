#include "kernels/conformance/case.h"

#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/convert.h"
#include "kernels/reference/reference.h"

namespace flashbob::conformance {
namespace {

using enum TensorName;

std::vector<double> NormalElements(uint64_t seed, TensorName name, size_t elements, double deviation, DType dtype) {
  // Seeded by tensor, so that leaving one out changes no other.
  std::seed_seq sequence = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32),
                            static_cast<uint32_t>(name)};
  std::mt19937_64 generator(sequence);
  std::normal_distribution<double> normal(0, deviation);
  std::vector<double> values(elements);
  for (double& x : values) x = RoundTo(dtype, normal(generator));
  return values;
}

std::vector<TensorInfo> PrimalsOf(const CaseSpec& spec) {
  const auto shape = [&](int64_t heads, int64_t length, const std::vector<int64_t>& starts, int64_t width) -> Shape {
    switch (spec.options.layout) {
      case Layout::kBHND:
        return {spec.batch, heads, length, width};
      case Layout::kBNHD:
        return {spec.batch, length, heads, width};
      case Layout::kTHD:
        return {starts.empty() ? 0 : starts.back(), heads, width};
    }
    return {};
  };
  const std::vector<int64_t>& starts_q = spec.options.cu_seqlens_q;
  const std::vector<int64_t>& starts_k = spec.options.cu_seqlens_k;
  return {{kQ, spec.dtype, shape(spec.heads, spec.query_len, starts_q, spec.head_dim)},
          {kK, spec.dtype, shape(spec.kv_heads, spec.key_len, starts_k, spec.head_dim)},
          {kV, spec.dtype, shape(spec.kv_heads, spec.key_len, starts_k, spec.value_dim)}};
}

}  // namespace

absl::StatusOr<Computation> MakeComputation(const CaseSpec& spec) {
  std::vector<TensorInfo> inputs = PrimalsOf(spec);
  FLASHBOB_ASSIGN_OR_RETURN(const AttentionProblem problem, AttentionProblem::FromShapes(spec.options, inputs));
  const TensorSet others = (Computation::RequiredInputs(spec.operation) | spec.optional_inputs) - TensorSet{kQ, kK, kV};
  others.ForEach([&](TensorName name) { inputs.push_back({name, problem.DTypeOf(name), problem.ShapeOf(name)}); });
  return Computation::Create(spec.operation, spec.options, inputs, spec.outputs);
}

absl::StatusOr<ConformanceCase> ConformanceCase::Create(const CaseSpec& spec) {
  FLASHBOB_ASSIGN_OR_RETURN(Computation computation, MakeComputation(spec));
  return ConformanceCase(spec, std::move(computation));
}

ConformanceCase::ConformanceCase(CaseSpec spec, Computation computation)
    : spec_(std::move(spec)), computation_(std::move(computation)) {
  shape_ = absl::StrCat(computation_.problem().ToString(), " of ", computation_.inputs().ToString());
}

absl::StatusOr<std::map<TensorName, std::vector<double>>> MakeInputs(const ConformanceCase& conformance_case) {
  const CaseSpec& spec = conformance_case.spec();
  const AttentionProblem& problem = conformance_case.computation().problem();
  std::map<TensorName, std::vector<double>> inputs;
  const TensorSet given = conformance_case.computation().inputs();
  (given - TensorSet{kO, kLse}).ForEach([&](TensorName name) {
    inputs[name] = NormalElements(spec.seed, name, static_cast<size_t>(problem.NumElements(name)),
                                  name == kQ ? spec.query_deviation : 1, problem.DTypeOf(name));
  });
  if (given.Has(kO)) {
    CaseSpec forward_spec = spec;
    forward_spec.operation = Operation::kForward;
    forward_spec.optional_inputs = {};
    forward_spec.outputs = {};
    FLASHBOB_ASSIGN_OR_RETURN(const Computation forward, MakeComputation(forward_spec));
    FLASHBOB_ASSIGN_OR_RETURN(ReferenceResult result, ComputeReference(forward, inputs));
    for (TensorName name : {kO, kLse}) {
      std::vector<double>& values = inputs[name] = std::move(result.outputs[name].value);
      for (double& x : values) x = RoundTo(problem.DTypeOf(name), x);
    }
  }
  return inputs;
}

}  // namespace flashbob::conformance
