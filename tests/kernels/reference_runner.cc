#include "tests/kernels/reference_runner.h"

#include "kernels/base/status_macros.h"
#include "kernels/convert.h"
#include "kernels/reference/reference.h"

namespace flashbob {

absl::Status RunReference(const Computation& computation, const TensorPointers& tensors) {
  const AttentionProblem& problem = computation.problem();
  std::map<TensorName, std::vector<double>> inputs;
  computation.inputs().ForEach([&](TensorName name) {
    inputs[name] = ToDoubles(problem.DTypeOf(name), tensors.Get(name), static_cast<size_t>(problem.NumElements(name)));
  });
  FLASHBOB_ASSIGN_OR_RETURN(const ReferenceResult result, ComputeReference(computation, inputs, {std::nullopt, 1}));
  for (const auto& [name, tensor] : result.outputs) {
    FromDoubles(problem.DTypeOf(name), tensor.value, tensors.Get(name));
  }
  return absl::OkStatus();
}

}  // namespace flashbob
