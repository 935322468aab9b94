// WaveTable: cuts the tasks of a pass into slices of bounded work.
//
// Consecutive tasks form waves. Where a task for each thread, or several, fit into one slice, the wave is that slice.
// Where not even one task for each thread fits, the wave is those tasks, and it is cut across: each of its segments
// (slices) does some of the steps (tiles) of every task, whose running sums lie in the workspace from one segment to
// the next. The table holds stretches: runs of waves of one size, made for the costliest of their tasks. In the batched
// layouts they are those of one sequence, which repeat; a sequence has 64 at most, so that planning takes no longer for
// more rows, heads or sequences. Packed sequences are gone through one by one. Waves and slices are found by
// arithmetic.
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
  int64_t segments = 1;

  bool split() const { return segments > 1; }
};

// What no task of a set exceeds.
struct TaskBound {
  int64_t steps = 0;
  double flops = 0;  // above 0

  bool operator==(const TaskBound&) const = default;
};

class WaveTable {
 public:
  struct Limits {
    int threads = 1;
    double slice_flops = 0;  // of all threads together
  };
  // Of the tasks of these blocks of sequence b.
  using BoundOf = absl::FunctionRef<TaskBound(int64_t b, IndexRange blocks)>;
  // Slices are not counted further.
  static constexpr int64_t kManySlices = int64_t{1} << 50;

  WaveTable() = default;
  WaveTable(const TaskGrid& grid, const Limits& limits, BoundOf bound_of);

  struct Slice {
    Wave wave;
    int64_t segment = 0;

    bool first() const { return segment == 0; }
    bool last() const { return segment + 1 == wave.segments; }
  };

  // kManySlices where there are as many or more: then there is no finding them.
  int64_t slices() const { return slices_; }
  Slice At(int64_t slice) const;
  // Estimates. Those of all slices add up to flops().
  double flops() const { return flops_; }
  double SliceFlops(int64_t slice) const;
  // Tasks of the largest wave that is split; 0 where none is.
  int64_t max_split_tasks() const { return max_split_tasks_; }
  // Of the largest wave.
  int64_t max_tasks() const { return max_tasks_; }
  // What the table holds, and planning therefore costs.
  int64_t stretches() const { return static_cast<int64_t>(stretches_.size()); }

 private:
  struct Stretch {
    int64_t first_task = 0;
    int64_t first_slice = 0;
    int64_t tasks = 0;
    int64_t wave_tasks = 0;  // the last wave may have fewer
    int64_t segments = 1;    // of a wave
    double task_flops = 0;   // on average
  };
  struct Found {
    const Stretch& stretch;
    Slice slice;
  };

  // For `tasks` tasks of this bound, and of `flops` in all.
  static Stretch Cut(int64_t tasks, const TaskBound& bound, double flops, const Limits& limits);
  void AddBatched(const TaskGrid& grid, const Limits& limits, BoundOf bound_of);
  void AddPacked(const TaskGrid& grid, const Limits& limits, BoundOf bound_of);
  // In at most this many stretches.
  void AddSequence(const TaskGrid& grid, int64_t b, int64_t stretches, const Limits& limits, BoundOf bound_of);
  void Add(Stretch stretch);
  Found Find(int64_t slice) const;

  std::vector<Stretch> stretches_;  // of a period
  int64_t period_tasks_ = 0;
  int64_t period_slices_ = 0;
  double period_flops_ = 0;
  int64_t slices_ = 0;
  double flops_ = 0;
  int64_t max_split_tasks_ = 0;
  int64_t max_tasks_ = 0;
};

}  // namespace flashbob::cpu

#endif  // FLASHBOB_KERNELS_CPU_WAVES_H_
