#include "kernels/cpu/task_grid.h"

#include <algorithm>

namespace flashbob::cpu {

TaskGrid::TaskGrid(const AttentionProblem& problem, Side side, int64_t block_rows)
    : block_rows_(block_rows),
      heads_(side == Side::kQuery ? problem.heads() : problem.kv_heads()),
      sequences_(problem.batch()) {
  if (problem.layout() != Layout::kTHD) {
    if (problem.batch() == 0) return;
    length_ = side == Side::kQuery ? problem.query_len(0) : problem.key_len(0);
    size_ = problem.batch() * Tasks(0);
    return;
  }
  starts_ = side == Side::kQuery ? problem.options().cu_seqlens_q : problem.options().cu_seqlens_k;
  first_task_.reserve(static_cast<size_t>(problem.batch()));
  for (int64_t b = 0; b < problem.batch(); ++b) {
    first_task_.push_back(size_);
    size_ += Tasks(b);
  }
}

TaskGrid::Task TaskGrid::At(int64_t task) const {
  Task located;
  if (starts_.empty()) {
    const int64_t per_sequence = Tasks(0);
    located.b = task / per_sequence;
    task -= located.b * per_sequence;
  } else {
    // The last sequence that starts at or before the task: those without rows start where the next one does.
    located.b = std::upper_bound(first_task_.begin(), first_task_.end(), task) - first_task_.begin() - 1;
    task -= first_task_[located.b];
  }
  located.block = task / heads_;
  located.head = task % heads_;
  located.rows = Rows(located.b, located.block);
  return located;
}

IndexRange TaskGrid::Rows(int64_t b, int64_t block) const {
  return {block * block_rows_, std::min((block + 1) * block_rows_, Length(b))};
}

IndexRange TaskGrid::BlocksOf(IndexRange rows) const {
  if (rows.empty()) return {};
  return {rows.begin / block_rows_, (rows.end + block_rows_ - 1) / block_rows_};
}

}  // namespace flashbob::cpu
