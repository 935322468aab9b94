// WaveTable: cuts the tasks of a pass into slices of bounded work.
//
// Consecutive tasks form waves. Where several tasks fit into one slice, the wave is that slice. Where not even one task
// for each thread fits, the wave is those tasks, and it is cut across: each of its segments (slices) does some of the
// steps (tiles) of every task, whose running sums lie in the workspace from one segment to the next.
// The table holds an entry a wave, which is a slice or more of work; the segments are found by arithmetic.
//
// Immutable; share freely.
#ifndef FLASHBOB_KERNELS_CPU_WAVES_H_
#define FLASHBOB_KERNELS_CPU_WAVES_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "kernels/cpu/task_grid.h"

namespace flashbob::cpu {

struct Wave {
  int64_t first_task = 0;
  int64_t tasks = 0;
  int64_t steps = 0;  // of the longest task
  int64_t segments = 1;
  int64_t first_slice = 0;
  double flops = 0;

  bool split() const { return segments > 1; }
};

class WaveTable {
 public:
  struct Limits {
    int threads = 1;
    double slice_flops = 0;  // of all threads together
  };
  using TaskFlops = absl::FunctionRef<double(const TaskGrid::Task& task)>;
  using WaveSteps = absl::FunctionRef<int64_t(int64_t first_task, int64_t tasks)>;

  WaveTable() = default;
  WaveTable(const TaskGrid& grid, const Limits& limits, TaskFlops task_flops, WaveSteps wave_steps);

  struct Slice {
    const Wave* wave = nullptr;
    IndexRange steps;
    bool first = true;  // segment of its wave
    bool last = true;
  };

  int64_t slices() const { return slices_; }
  Slice At(int64_t slice) const;
  double flops() const { return flops_; }
  double SliceFlops(int64_t slice) const;
  // Tasks of the largest wave that is split; 0 where none is.
  int64_t max_split_tasks() const { return max_split_tasks_; }
  // Of the largest wave.
  int64_t max_tasks() const { return max_tasks_; }

 private:
  void Add(Wave wave);
  const Wave& WaveOf(int64_t slice) const;

  std::vector<Wave> waves_;
  int64_t slices_ = 0;
  double flops_ = 0;
  int64_t max_split_tasks_ = 0;
  int64_t max_tasks_ = 0;
};

}  // namespace flashbob::cpu

#endif  // FLASHBOB_KERNELS_CPU_WAVES_H_
