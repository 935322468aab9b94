#include "kernels/conformance/run.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "kernels/conformance/host_tensor.h"

namespace flashbob::conformance {
namespace {

using Elements = std::map<TensorName, std::vector<double>>;

void AddDefect(CaseReport& report, const std::string& defect) {
  absl::StrAppend(&report.defect, report.defect.empty() ? "" : "; ", defect);
}

// The error of the reference formula rounded where an engine rounds, for each output: empty where no bar needs it.
absl::StatusOr<std::map<TensorName, double>> RoundedErrors(const Computation& computation, const Elements& inputs,
                                                           const ReferenceResult& reference, BarKind kind) {
  std::map<TensorName, double> errors;
  bool needed = false;
  computation.outputs().ForEach(
      [&](TensorName name) { needed = needed || !ErrorBarHolds(kind, computation, name, reference.outputs.at(name)); });
  if (!needed) return errors;
  const AttentionProblem& problem = computation.problem();
  FLASHBOB_ASSIGN_OR_RETURN(const ReferenceResult rounded,
                            ComputeReference(computation, inputs, {.rounding = problem.dtype()}));
  for (const auto& [name, tensor] : rounded.outputs) {
    errors[name] = RelativeError(tensor.value, reference.outputs.at(name), problem.DTypeOf(name));
  }
  return errors;
}

}  // namespace

Runner RunnerOf(Engine& engine) {
  return [&engine](const Computation& computation, const TensorPointers& tensors) {
    return RunToCompletion(engine, computation, tensors);
  };
}

std::string CaseReport::ToString() const {
  std::string text = absl::StrCat(ok ? "ok " : "BAD ", operation, " ", dtype, " ", mask, " ", shape, ":");
  for (const OutputReport& output : outputs) {
    absl::StrAppend(&text, absl::StrFormat(" %s %.2e%s%.2e", Name(output.name), output.error,
                                           output.error <= output.bar ? "<=" : ">", output.bar));
    if (output.unwritten > 0) absl::StrAppend(&text, " (", output.unwritten, " unwritten)");
  }
  if (!defect.empty()) absl::StrAppend(&text, "; ", defect);
  return text;
}

absl::StatusOr<CaseReport> RunCase(const ConformanceCase& conformance_case, BarKind kind, const Runner& runner) {
  const Computation& computation = conformance_case.computation();
  const AttentionProblem& problem = computation.problem();
  FLASHBOB_ASSIGN_OR_RETURN(const Elements inputs, MakeInputs(conformance_case));

  TensorPointers pointers;
  std::map<TensorName, HostTensor> given;
  std::map<TensorName, HostTensor> results;
  for (const auto& [name, values] : inputs) {
    pointers.SetInput(name, given.try_emplace(name, problem.DTypeOf(name), values).first->second.data());
  }
  computation.outputs().ForEach([&](TensorName name) {
    const auto elements = static_cast<size_t>(problem.NumElements(name));
    pointers.Set(name, results.try_emplace(name, problem.DTypeOf(name), elements).first->second.data());
  });
  FLASHBOB_RETURN_IF_ERROR(runner(computation, pointers));

  CaseReport report;
  report.operation = Name(computation.operation());
  report.dtype = Name(problem.dtype());
  report.mask = conformance_case.spec().mask;
  report.shape = conformance_case.shape();
  for (const auto& [name, values] : inputs) {
    const HostTensor original(problem.DTypeOf(name), values);
    if (std::memcmp(original.data(), given.at(name).data(), original.bytes()) != 0) {
      AddDefect(report, absl::StrCat("input ", Name(name), " was changed"));
    }
  }

  FLASHBOB_ASSIGN_OR_RETURN(const ReferenceResult reference, ComputeReference(computation, inputs));
  FLASHBOB_ASSIGN_OR_RETURN(const auto rounded_errors, RoundedErrors(computation, inputs, reference, kind));
  report.ok = true;
  for (const auto& [name, result] : results) {
    OutputReport output;
    output.name = name;
    const ReferenceTensor& expected = reference.outputs.at(name);
    output.error = RelativeError(result.Values(), expected, problem.DTypeOf(name));
    const auto rounded = rounded_errors.find(name);
    output.bar = OutputBar(kind, computation, name, expected, reference.max_abs_score,
                           rounded == rounded_errors.end() ? 0 : rounded->second);
    output.unwritten = result.CountPoisoned();
    output.ok = output.error <= output.bar && output.unwritten == 0;
    report.ok = report.ok && output.ok;
    report.bar = std::max(report.bar, output.bar);
    report.outputs.push_back(output);
    if (!result.GuardsIntact()) {
      AddDefect(report, absl::StrCat("bytes beside output ", Name(name), " were written"));
    }
  }
  report.ok = report.ok && report.defect.empty();
  return report;
}

}  // namespace flashbob::conformance
