// CpuPlan: the slices of a computation on the CPU engine, and the map of its workspace.
//
// Slices: for each group of probes, those of the row pass, then those of the column pass (schedule.h, waves.h).
// The tiles, and the order in which sums are added up, depend on the problem alone, never on the number of threads or
// the size of slices: results are the same bits whatever these are.
//
// Immutable; share freely.
#ifndef FLASHBOB_KERNELS_CPU_CPU_PLAN_H_
#define FLASHBOB_KERNELS_CPU_CPU_PLAN_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cpu/schedule.h"
#include "kernels/cpu/task_grid.h"
#include "kernels/cpu/waves.h"
#include "kernels/engine.h"

namespace flashbob::cpu {

// Extents of the tiles of S.
struct TileShape {
  int64_t queries = 0;
  int64_t keys = 0;
  int64_t stride = 0;  // elements from one row of a tile to the next
};

// Where the parts of a workspace lie, in bytes from its start.
struct WorkspaceMap {
  // What the column pass needs of each query row: L, D, then c and r for each probe of a group. Each is
  // [heads, total queries]; 0 bytes where not needed.
  size_t l = 0;
  size_t d = 0;
  size_t c = 0;
  size_t r = 0;
  // [group probes, heads, total queries, head dim], in fp32, where gq itself cannot hold its sums.
  size_t gq = 0;
  // Of each task of a wave that is split, its running sums (RowSums or ColumnSums).
  size_t sums = 0;
  size_t sums_stride = 0;
  // Of each task of a wave of the column pass, the steps it has done: a cache line each.
  size_t progress = 0;
  // Of each thread, its tiles.
  size_t scratch = 0;
  size_t scratch_stride = 0;
  size_t total = 0;
};

class CpuPlan final : public Plan {
 public:
  struct Limits {
    int threads = 1;
    double slice_flops = 0;
    int64_t memory_bytes = 0;
    double thread_flops_per_second = 1e11;  // of products, by one thread: what time beside them is weighed by
  };

  // RESOURCE_EXHAUSTED where inputs, outputs and workspace together pass `memory_bytes`, FAILED_PRECONDITION where an
  // int does not count the slices.
  static absl::StatusOr<std::unique_ptr<const CpuPlan>> Create(const Computation& computation, const Limits& limits);

  size_t workspace_bytes() const override { return map_.total; }
  int num_slices() const override { return static_cast<int>(groups_ * SlicesPerGroup()); }
  double slice_flops(int slice) const override;

  const AttentionProblem& problem() const { return computation().problem(); }
  const Schedule& schedule() const { return schedule_; }
  const TileShape& tile() const { return tile_; }
  const TaskGrid& row_grid() const { return row_grid_; }
  const TaskGrid& column_grid() const { return column_grid_; }
  const WorkspaceMap& map() const { return map_; }
  int threads() const { return threads_; }
  int64_t max_group_probes() const { return group_probes_; }

  enum class Pass : bool { kRows, kColumns };
  struct Slice {
    Pass pass = Pass::kRows;
    IndexRange probes;  // of the group
    WaveTable::Slice work;
    IndexRange steps;  // that the slice does of each task; kAllSteps where the wave is not split
  };
  static constexpr int64_t kAllSteps = int64_t{1} << 62;
  Slice At(int64_t slice) const;
  // Of the longest task of a wave.
  int64_t StepsOf(Pass pass, const Wave& wave) const;

  // The tiles of a row of blocks: the key blocks that any of these queries of sequence b sees.
  IndexRange KeyBlocksOf(int64_t b, IndexRange queries) const;
  // The query blocks that see any of these keys of sequence b.
  IndexRange QueryBlocksOf(int64_t b, IndexRange keys) const;

  // What a wave of the column pass has of the sequence of one of its tasks.
  struct Run {
    IndexRange key_blocks;
    IndexRange query_blocks;  // that see any of these keys
    bool follows = false;     // the key block before the task's, of the same head, is in the wave: `heads` tasks before
  };
  Run RunOf(const Wave& wave, int64_t task_in_wave, const TaskGrid::Task& task) const;
  // Steps of the column pass from the first of a run's tasks to the last: each is a step behind the one before it.
  int64_t StepsOf(const Run& run) const;

  const WaveTable& row_waves() const { return row_waves_; }
  const WaveTable& column_waves() const { return column_waves_; }

 private:
  CpuPlan(const Computation& computation, const Limits& limits);

  int64_t SlicesPerGroup() const { return row_waves_.slices() + column_waves_.slices(); }
  void BuildWaves(const Limits& limits);
  template <typename Real>
  void MapWorkspace();

  Schedule schedule_;
  int threads_;
  TileShape tile_;
  int64_t probes_;        // sets of tangents
  int64_t group_probes_;  // that are computed at once
  int64_t groups_;
  TaskGrid row_grid_;
  TaskGrid column_grid_;
  WaveTable row_waves_;
  WaveTable column_waves_;
  WorkspaceMap map_;
};

}  // namespace flashbob::cpu

#endif  // FLASHBOB_KERNELS_CPU_CPU_PLAN_H_
