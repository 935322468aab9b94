// TaskGrid: the tasks of a pass: one for every block of rows (queries or keys) of every head of every sequence, in the
// order sequence, block, head: neighbours are of different heads, which need not wait for each other (column_pass.cc).
// Located by arithmetic, so that a grid of millions costs nothing.
//
// Immutable; share freely.
#ifndef FLASHBOB_KERNELS_CPU_TASK_GRID_H_
#define FLASHBOB_KERNELS_CPU_TASK_GRID_H_

#include <cstdint>
#include <vector>

#include "kernels/problem.h"

namespace flashbob::cpu {

enum class Side : bool { kQuery, kKey };

class TaskGrid {
 public:
  struct Task {
    int64_t b = 0;
    int64_t head = 0;  // query head or kv head, by the side
    int64_t block = 0;
    IndexRange rows;  // of the block, within the sequence
  };

  TaskGrid(const AttentionProblem& problem, Side side, int64_t block_rows);

  int64_t size() const { return size_; }
  int64_t block_rows() const { return block_rows_; }
  Task At(int64_t task) const;

  bool packed() const { return !starts_.empty(); }
  int64_t sequences() const { return sequences_; }
  int64_t heads() const { return heads_; }
  int64_t Length(int64_t b) const { return starts_.empty() ? length_ : starts_[b + 1] - starts_[b]; }
  // Blocks of a head of sequence b.
  int64_t Blocks(int64_t b) const { return (Length(b) + block_rows_ - 1) / block_rows_; }
  // Of all heads of sequence b.
  int64_t Tasks(int64_t b) const { return heads_ * Blocks(b); }
  IndexRange Rows(int64_t b, int64_t block) const;
  // The blocks that hold any of these rows.
  IndexRange BlocksOf(IndexRange rows) const;

 private:
  int64_t block_rows_;
  int64_t heads_;
  int64_t sequences_;
  int64_t length_ = 0;               // of every sequence, in the batched layouts
  std::vector<int64_t> starts_;      // packed: cu_seqlens of this side
  std::vector<int64_t> first_task_;  // packed: of each sequence
  int64_t size_ = 0;
};

}  // namespace flashbob::cpu

#endif  // FLASHBOB_KERNELS_CPU_TASK_GRID_H_
