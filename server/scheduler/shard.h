// Shard: some batch entries and key/value heads of an attention problem, with the query heads that share these. No
// other part of the problem has anything to do with it, so that it is a problem of its own: with the probes, lengths
// and mask of the whole one.
//
// Plain values and free functions, any thread.
#ifndef FLASHBOB_SERVER_SCHEDULER_SHARD_H_
#define FLASHBOB_SERVER_SCHEDULER_SHARD_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/computation.h"

namespace flashbob::server {

struct Shard {
  int64_t first_batch = 0;
  int64_t batches = 0;
  int64_t first_kv_head = 0;
  int64_t kv_heads = 0;

  static Shard WholeOf(const AttentionProblem& problem) { return {0, problem.batch(), 0, problem.kv_heads()}; }
  bool operator==(const Shard&) const = default;
};

// Cuts a problem into at most `most` shards, the largest of them as small as can be. The sequences of a packed batch
// stay together: they are cut by heads alone.
std::vector<Shard> CutIntoShards(const AttentionProblem& problem, int most);

// A shard of a computation, as a computation. Its tensors are contiguous, in the layout of the whole one.
absl::StatusOr<Computation> ComputationOf(const Computation& whole, const Shard& shard);

// Rows of bytes, the first at `offset`, `pitch` apart.
struct ByteRows {
  int64_t offset = 0;
  int64_t row_bytes = 0;
  int64_t rows = 0;
  int64_t pitch = 0;  // row_bytes where there is one row

  bool operator==(const ByteRows&) const = default;
};

// Where a shard's tensor lies in the whole one: its bytes, in their order, are those of these rows. As few as can be;
// none where it is empty.
std::vector<ByteRows> RowsOf(const AttentionProblem& whole, const Shard& shard, TensorName name);

}  // namespace flashbob::server

#endif  // FLASHBOB_SERVER_SCHEDULER_SHARD_H_
