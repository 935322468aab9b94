// Which block of which head a CTA owns, which tiles of the other side it walks, and in which order.
//
// Masked tiles (an edge of the band crosses them, or keys end within) come first, the others after them, so that each
// kind has its own loop: a test for the mask inside one loop costs a quarter of the speed.
#ifndef FLASHBOB_KERNELS_CUDA_HOPPER_WALK_CUH_
#define FLASHBOB_KERNELS_CUDA_HOPPER_WALK_CUH_

#include <cstdint>

#include "kernels/cuda/hopper/bob_params.h"
#include "kernels/mask.h"

namespace flashbob::cuda::hopper {

// Visible diagonals (key - query - shift) as one unsigned comparison: diagonal - lowest <= count.
struct DiagonalRange {
  static constexpr int32_t kOpen = 1 << 28;   // beyond every diagonal
  static constexpr int32_t kNever = 1 << 30;  // what a row has that sees nothing: out of range whatever is subtracted
  int32_t lowest;
  uint32_t count;
};

__device__ inline DiagonalRange DiagonalsOf(const BandMask& mask) {
  const int32_t lowest = mask.left < 0 ? -DiagonalRange::kOpen : -static_cast<int32_t>(mask.left);
  const int32_t highest = mask.right < 0 ? DiagonalRange::kOpen : static_cast<int32_t>(mask.right);
  return {lowest, static_cast<uint32_t>(highest - lowest)};
}

struct BlockPosition {
  int32_t head;  // over all batch entries
  int32_t block;
};

__device__ inline BlockPosition PositionOf(const Schedule& schedule) {
  const int64_t item = schedule.item_begin + blockIdx.x;
  const int64_t chunk_items = static_cast<int64_t>(schedule.heads_per_chunk) * schedule.blocks;
  const int32_t first_head = static_cast<int32_t>(item / chunk_items) * schedule.heads_per_chunk;
  const int32_t within = static_cast<int32_t>(item % chunk_items);
  const int32_t left = schedule.heads - first_head;
  const int32_t heads = left < schedule.heads_per_chunk ? left : schedule.heads_per_chunk;
  return {first_head + within % heads, within / heads};
}

__device__ inline int32_t Clamp(int64_t value, int32_t low, int32_t high) {
  return value < low ? low : value > high ? high : static_cast<int32_t>(value);
}

// Floor and ceiling of a quotient whose dividend may be negative.
__device__ inline int64_t FloorDivide(int64_t a, int32_t b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }
__device__ inline int64_t CeilDivide(int64_t a, int32_t b) { return -FloorDivide(-a, b); }

// Tiles [begin, end), of which those in [full_begin, full_end) need no mask.
struct TileSpan {
  int32_t begin = 0;
  int32_t end = 0;
  int32_t full_begin = 0;
  int32_t full_end = 0;

  __device__ int32_t masked() const { return end - begin - (full_end - full_begin); }
  __device__ int32_t full() const { return full_end - full_begin; }
  // The i-th masked tile.
  __device__ int32_t Masked(int32_t i) const {
    const int32_t before = full_begin - begin;
    return i < before ? begin + i : full_end + i - before;
  }
};

struct ColumnStep {
  int32_t head_in_group;
  int32_t query0;
};

// The walk of a block of keys over the queries of every head of its group.
struct ColumnWalk {
  int32_t batch;
  int32_t kv_head;
  int32_t key0;
  int32_t tile_rows;
  int32_t first;  // full tile that this block starts with: blocks side by side start apart, and add to gQ apart
  TileSpan span;
  int32_t masked_steps;
  int32_t steps;
  int64_t padded_queries;

  __device__ ColumnWalk(const ColumnsParams& params, int32_t keys, int32_t queries) : tile_rows(queries) {
    const BlockPosition position = PositionOf(params.schedule);
    batch = position.head / params.kv_heads;
    kv_head = position.head % params.kv_heads;
    key0 = position.block * keys;
    padded_queries = PaddedRows(params.mask.query_len);
    const BandMask& mask = params.mask;
    const int64_t key_end = key0 + keys < mask.key_len ? key0 + keys : mask.key_len;
    const IndexRange visible = mask.QueriesOf(IndexRange{key0, key_end});
    if (!visible.empty()) {
      span.begin = static_cast<int32_t>(visible.begin / queries);
      span.end = static_cast<int32_t>((visible.end - 1) / queries) + 1;
      // Queries past the end need no mask: their P is 0 by L = +inf.
      span.full_begin = span.begin;
      span.full_end = span.end;
      if (mask.right >= 0) {
        span.full_begin = Clamp(CeilDivide(key0 + keys - 1 - mask.shift - mask.right, queries), span.begin, span.end);
      }
      if (mask.left >= 0) {
        span.full_end = Clamp(FloorDivide(key0 - mask.shift + mask.left + 1, queries), span.full_begin, span.end);
      }
      if (key0 + keys > mask.key_len) span.full_end = span.full_begin;
    }
    first = span.full() > 0 && mask.right < 0 ? 2 * position.block % span.full() : 0;
    masked_steps = span.masked() * params.group;
    steps = (span.end - span.begin) * params.group;
  }

  __device__ ColumnStep At(int32_t step) const {
    if (step < masked_steps) {
      const int32_t a_head = span.masked();
      return {step / a_head, span.Masked(step % a_head) * tile_rows};
    }
    const int32_t a_head = span.full();
    const int32_t within = (step - masked_steps) % a_head + first;
    return {(step - masked_steps) / a_head,
            (span.full_begin + (within < a_head ? within : within - a_head)) * tile_rows};
  }
};

// The walk of a block of query rows over the keys that they see.
struct RowWalk {
  int32_t batch;
  int32_t head;
  int32_t query0;
  TileSpan span;
  int32_t tile_rows;
  int32_t masked_steps;
  int32_t steps;

  __device__ RowWalk(const RowsParams& params, int32_t queries, int32_t keys) : tile_rows(keys) {
    const BlockPosition position = PositionOf(params.schedule);
    batch = position.head / params.heads;
    head = position.head % params.heads;
    const BandMask& mask = params.mask;
    // Where the future is masked the last rows see most.
    const int32_t block = mask.right >= 0 ? params.schedule.blocks - 1 - position.block : position.block;
    query0 = block * queries;
    const int64_t query_end = query0 + queries < mask.query_len ? query0 + queries : mask.query_len;
    const IndexRange visible = mask.KeysOf(IndexRange{query0, query_end});
    if (!visible.empty()) {
      span.begin = static_cast<int32_t>(visible.begin / keys);
      span.end = static_cast<int32_t>((visible.end - 1) / keys) + 1;
      span.full_begin = span.begin;
      if (mask.left >= 0) {
        span.full_begin = Clamp(CeilDivide(query_end - 1 + mask.shift - mask.left, keys), span.begin, span.end);
      }
      int64_t full_keys = mask.key_len;
      if (mask.right >= 0 && query0 + mask.shift + mask.right + 1 < full_keys) {
        full_keys = query0 + mask.shift + mask.right + 1;
      }
      span.full_end = Clamp(FloorDivide(full_keys, keys), span.full_begin, span.end);
    }
    masked_steps = span.masked();
    steps = span.end - span.begin;
  }

  __device__ int32_t Key0(int32_t step) const {
    return (step < masked_steps ? span.Masked(step) : span.full_begin + step - masked_steps) * tile_rows;
  }
};

}  // namespace flashbob::cuda::hopper

#endif  // FLASHBOB_KERNELS_CUDA_HOPPER_WALK_CUH_
