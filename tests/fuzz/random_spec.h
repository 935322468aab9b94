// RandomProblem: a valid Compute spec of a tiny problem, its inputs' bytes and what the CPU engine makes of them.
#ifndef FLASHBOB_TESTS_FUZZ_RANDOM_SPEC_H_
#define FLASHBOB_TESTS_FUZZ_RANDOM_SPEC_H_

#include <random>
#include <string>
#include <vector>

#include "flashbob/v1/attention_service.pb.h"
#include "kernels/engine.h"

namespace flashbob::fuzz {

struct RandomProblem {
  v1::ComputeSpec spec;             // all inputs inline, all outputs listed and inline
  std::vector<std::string> inputs;  // bytes, in the order of the spec
};

// Any operation, dtype, layout, mask, probes and set of optional inputs; lengths and widths below 10, also 0 where that
// is valid. Values are finite.
RandomProblem MakeRandomProblem(std::mt19937_64& random);

// Bytes of each output, in the order of the spec, as `engine` computes them.
std::vector<std::string> ComputeHere(Engine& engine, const RandomProblem& problem);

}  // namespace flashbob::fuzz

#endif  // FLASHBOB_TESTS_FUZZ_RANDOM_SPEC_H_
