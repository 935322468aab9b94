// A conformance runner over a GPU engine that poisons all device memory first: outputs and workspace hold all bits set
// (a NaN in every dtype), and so do guards before and behind every tensor, which must be as they were afterwards.
#ifndef FLASHBOB_TESTS_KERNELS_CUDA_DEVICE_RUNNER_H_
#define FLASHBOB_TESTS_KERNELS_CUDA_DEVICE_RUNNER_H_

#include "kernels/conformance/run.h"
#include "kernels/engine.h"

namespace flashbob {

// The engine must outlive the runner. Not OK, too, where a guard was written.
conformance::Runner PoisoningRunnerOf(Engine& engine);

}  // namespace flashbob

#endif  // FLASHBOB_TESTS_KERNELS_CUDA_DEVICE_RUNNER_H_
