// The engines that conformance and identity tests run against.
#ifndef FLASHBOB_TESTS_KERNELS_ENGINES_UNDER_TEST_H_
#define FLASHBOB_TESTS_KERNELS_ENGINES_UNDER_TEST_H_

#include <ostream>
#include <vector>

#include "kernels/conformance/error.h"
#include "kernels/conformance/run.h"

namespace flashbob {

struct EngineUnderTest {
  const char* name;
  conformance::Runner (*make_runner)();  // the runner owns its engine
  conformance::BarKind bars = conformance::BarKind::kCpu;
  bool materialises = false;  // whole rows of scores: what the mask hides is multiplied by zero, not skipped
};

inline std::ostream& operator<<(std::ostream& out, const EngineUnderTest& engine) { return out << engine.name; }

// The reference itself, the CPU engine, and, where there is a GPU, the CUDA engine with its portable kernels and, if it
// can, with those for Hopper.
std::vector<EngineUnderTest> EnginesUnderTest();

}  // namespace flashbob

#endif  // FLASHBOB_TESTS_KERNELS_ENGINES_UNDER_TEST_H_
