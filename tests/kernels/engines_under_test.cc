#include "tests/kernels/engines_under_test.h"

#include <memory>

#include "kernels/cpu/cpu_engine.h"
#include "tests/kernels/reference_runner.h"

namespace flashbob {
namespace {

conformance::Runner MakeReferenceRunner() { return RunReference; }

conformance::Runner MakeCpuRunner() {
  std::shared_ptr<Engine> engine = cpu::CreateCpuEngine({});
  return [engine](const Computation& computation, const TensorPointers& tensors) {
    return RunToCompletion(*engine, computation, tensors);
  };
}

}  // namespace

std::vector<EngineUnderTest> EnginesUnderTest() {
  return {{"reference", MakeReferenceRunner, true}, {"cpu", MakeCpuRunner}};
}

}  // namespace flashbob
