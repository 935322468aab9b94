// The fp64 reference behind the interface of engines, to test what tests engines.
#ifndef FLASHBOB_TESTS_KERNELS_REFERENCE_RUNNER_H_
#define FLASHBOB_TESTS_KERNELS_REFERENCE_RUNNER_H_

#include "absl/status/status.h"
#include "kernels/computation.h"
#include "kernels/engine.h"

namespace flashbob {

// Computes by the reference, on one thread, and rounds the outputs to their dtype.
absl::Status RunReference(const Computation& computation, const TensorPointers& tensors);

}  // namespace flashbob

#endif  // FLASHBOB_TESTS_KERNELS_REFERENCE_RUNNER_H_
