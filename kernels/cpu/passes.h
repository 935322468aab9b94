// The two passes over tiles of the score matrix (schedule.h), one task at a time, and the memory that each needs.
//
// Tasks of one slice may run at once on different threads, each with its own thread number. No N x N array: a task sees
// one tile of S at a time.
#ifndef FLASHBOB_KERNELS_CPU_PASSES_H_
#define FLASHBOB_KERNELS_CPU_PASSES_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cpu/carver.h"
#include "kernels/cpu/cpu_plan.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/operands.h"

namespace flashbob::cpu {

// One slice on its way.
template <typename Real>
struct PassContext {
  const CpuPlan& plan;
  const CpuPlan::Slice& slice;
  const Operands& operands;
  const ElementwiseKernels<Real>& kernels;
  std::byte* workspace;

  template <typename T>
  T* Part(size_t offset) const {
    return reinterpret_cast<T*>(workspace + offset);
  }
};

// The running sums of a task of the row pass: for each of its rows (queries).
template <typename Real>
struct RowSums {
  RowSums(Carver& carver, const CpuPlan& plan);

  Real* m;  // maximum and sum of the running softmax
  Real* l;
  Real* o;  // P V
  Real* c;  // [group probes, rows]
  Real* t;  // [group probes, rows, value dim]
};

// The running sums of a task of the column pass: for each of its rows (keys). They lie transposed, since oneDNN is
// faster at products with long rows.
template <typename Real>
struct ColumnSums {
  ColumnSums(Carver& carver, const CpuPlan& plan);

  Real* gk;  // [group probes, head dim, rows]
  Real* gv;  // [group probes, value dim, rows]
};

// The steps that a task of the column pass has done. Column j of a head adds to gq where column j - 1 has, so that
// there is one order of adding.
struct alignas(Carver::kAlignment) Progress {
  std::atomic<int64_t> steps;
};

// Room for the arrays of a TileMask.
struct MaskRows {
  MaskRows(Carver& carver, const CpuPlan& plan);

  int32_t* begin;
  int32_t* end;
  uint8_t* alone;
};

// A thread's memory in the row pass. Tensors that cannot be used in place are converted into the parts of their name.
template <typename Real>
struct RowScratch {
  RowScratch(Carver& carver, const CpuPlan& plan);

  Real *q, *tq, *k, *tk, *v, *tv;
  Real *o, *d_o, *tdo;
  Real *s, *g;  // tiles
  Real* l;      // L of the rows, +inf for -inf
  Real* rescale;
  MaskRows mask_rows;
  RowSums<Real> sums;  // where the wave is not split
};

// Rows of gk or gv that are turned round at a time.
inline constexpr int64_t kStoredRows = 16;

template <typename Real>
struct ColumnScratch {
  ColumnScratch(Carver& carver, const CpuPlan& plan);

  Real *k, *tk, *v, *tv;
  Real *q, *tq, *d_o, *tdo;
  Real *p, *z, *g, *w;  // tiles
  Real* rows;           // gk or gv as it is stored, a few rows at a time
  MaskRows mask_rows;
  ColumnSums<Real> sums;
};

template <typename Real>
absl::Status RunRowTask(const PassContext<Real>& context, int64_t task_in_wave, int thread);

// `RunColumnTask` waits for tasks of smaller number in the same slice. Every Progress of the wave is 0 steps at first.
template <typename Real>
absl::Status RunColumnTask(const PassContext<Real>& context, int64_t task_in_wave, int thread);

// The mask of one tile, held in `rows`; without intervals where all of it is visible.
TileMask MaskTile(const BandMask& mask, IndexRange queries, IndexRange keys, int64_t stride, const MaskRows& rows);

// The number of a query row in the workspace's per-row arrays.
int64_t QueryRow(const AttentionProblem& problem, int64_t b, int64_t head, int64_t row);

}  // namespace flashbob::cpu

#endif  // FLASHBOB_KERNELS_CPU_PASSES_H_
