#include "tests/kernels/engines_under_test.h"

#include "tests/kernels/reference_runner.h"

namespace flashbob {

std::vector<EngineUnderTest> EnginesUnderTest() {
  return {{"reference", [] { return conformance::Runner(RunReference); }}};
}

}  // namespace flashbob
