// The lists of conformance cases. Each list is drawn from a seed: another seed is other data and other combinations.
#ifndef FLASHBOB_KERNELS_CONFORMANCE_CASES_H_
#define FLASHBOB_KERNELS_CONFORMANCE_CASES_H_

#include <cstdint>
#include <vector>

#include "kernels/conformance/case.h"

namespace flashbob::conformance {

// Every operation x dtype x mask kind, and with every operation x dtype also: GQA, value dim != head dim, N_q != N_k,
// probes, the layouts, left-out cotangents, o and lse given, TF32 permitted. Seconds on two cores.
std::vector<ConformanceCase> QuickCases(uint64_t seed);

// The corners: lengths of 1, 3, 63, 65, 127 and 1023; scores of +-100; groups of 1, 2, 7 and 32; sequences of length 0
// and 1 in packed batches; edges of windows; rows and whole problems without a visible key; head dims of 1, 5, 80, 96,
// 200 and 256; every set of left-out cotangents; every output alone. Minutes on two cores.
std::vector<ConformanceCase> FullCases(uint64_t seed);

}  // namespace flashbob::conformance

#endif  // FLASHBOB_KERNELS_CONFORMANCE_CASES_H_
