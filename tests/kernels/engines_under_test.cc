#include "tests/kernels/engines_under_test.h"

#include <memory>

#include "kernels/cpu/cpu_engine.h"
#include "kernels/cuda/cuda_engine.h"
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

template <HopperKernels kHopper>
conformance::Runner MakeCudaRunner() {
  absl::StatusOr<std::unique_ptr<Engine>> created = CreateCudaEngine(CudaDevices().front(), {.hopper = kHopper});
  if (!created.ok()) {
    return [status = created.status()](const Computation&, const TensorPointers&) { return status; };
  }
  std::shared_ptr<Engine> engine = *std::move(created);
  return [engine](const Computation& computation, const TensorPointers& tensors) {
    return RunToCompletion(*engine, computation, tensors);
  };
}

}  // namespace

std::vector<EngineUnderTest> EnginesUnderTest() {
  std::vector<EngineUnderTest> engines = {
      {.name = "reference", .make_runner = MakeReferenceRunner, .materialises = true},
      {.name = "cpu", .make_runner = MakeCpuRunner}};
  if (!CudaDevices().empty()) {
    engines.push_back(
        {.name = "cuda", .make_runner = MakeCudaRunner<HopperKernels::kNever>, .bars = conformance::BarKind::kGpu});
    if (CreateCudaEngine(CudaDevices().front(), {.hopper = HopperKernels::kRequired}).ok()) {
      engines.push_back({.name = "hopper",
                         .make_runner = MakeCudaRunner<HopperKernels::kRequired>,
                         .bars = conformance::BarKind::kGpu});
    }
  }
  return engines;
}

}  // namespace flashbob
