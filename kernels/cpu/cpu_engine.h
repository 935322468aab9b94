// The CPU engine: every operation, dtype and mask of math.md, tiled, on all cores. README.md has schedule and figures.
//
// Device memory is host memory: tensors and workspaces may lie anywhere in it, aligned to their element size. Launch
// runs the slice, on the engine's own threads and the caller's, and returns when it is done; Launches from several
// threads take turns. Results are the same bits from run to run and for any number of threads.
#ifndef FLASHBOB_KERNELS_CPU_CPU_ENGINE_H_
#define FLASHBOB_KERNELS_CPU_CPU_ENGINE_H_

#include <memory>

#include "kernels/engine.h"

namespace flashbob::cpu {

struct CpuEngineOptions {
  int threads = 0;         // 0: every core that this process may use
  double slice_flops = 0;  // work of a slice; 0: what takes about 15 ms, measured when the engine is made
};

std::unique_ptr<Engine> CreateCpuEngine(const CpuEngineOptions& options);

}  // namespace flashbob::cpu

#endif  // FLASHBOB_KERNELS_CPU_CPU_ENGINE_H_
