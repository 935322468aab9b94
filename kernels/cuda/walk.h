// Which rows an item owns and which tiles it walks: the one place where passes turn an item's number into a rectangle.
//
// Host and device. Rows of one side are cut into blocks of `owned` rows; the other side into tiles of `streamed` rows.
#ifndef FLASHBOB_KERNELS_CUDA_WALK_H_
#define FLASHBOB_KERNELS_CUDA_WALK_H_

#include <cstdint>

#include "kernels/cuda/pass.h"
#include "kernels/mask.h"

namespace flashbob::cuda {

// One sequence of one batch entry.
struct Sequence {
  int32_t index = 0;
  int64_t query_start = 0;  // rows before it in the packed layout
  int64_t key_start = 0;
  BandMask mask;  // with its lengths
};

FLASHBOB_HOST_DEVICE inline BandMask MaskOf(const PassArgs& args, int64_t query_len, int64_t key_len) {
  BandMask mask;
  mask.query_len = query_len;
  mask.key_len = key_len;
  // As AttentionProblem::mask does: a window wider than both lengths is as good as open, and sums stay small.
  const int64_t widest = query_len + key_len;
  mask.left = args.window_left < widest ? args.window_left : widest;
  mask.right = args.window_right < widest ? args.window_right : widest;
  mask.shift = args.bottom_right ? key_len - query_len : 0;
  return mask;
}

// Where an item works.
struct Item {
  Sequence sequence;
  int32_t probe = 0;
  int32_t head = 0;   // of the query side in the row passes, of the kv side in the column pass
  int32_t block = 0;  // within the sequence
};

enum class Side : uint8_t { kQuery, kKey };

// Where item `number` stands among the blocks of a head and among all heads (of probes, batch entries, in that order).
// Blocks are innermost; with `interleave` heads, that many take turns, so that the first blocks of all come first.
struct ItemPosition {
  int64_t block;
  int64_t head;
};
FLASHBOB_HOST_DEVICE inline ItemPosition PositionOf(int64_t number, int64_t blocks, int64_t heads, int32_t interleave) {
  if (interleave <= 1) return {number % blocks, number / blocks};
  const int64_t first_head = number / (blocks * interleave) * interleave;
  const int64_t left = heads - first_head;
  const int64_t turns = left < interleave ? left : interleave;
  const int64_t within = number - first_head * blocks;
  return {within / turns, first_head + within % turns};
}

// Heads of a pass over all probes and batch entries.
template <Side kSide>
FLASHBOB_HOST_DEVICE inline int64_t AllHeads(const PassArgs& args) {
  return int64_t{args.probes} * (args.sequences == nullptr ? args.batch : 1) *
         (kSide == Side::kQuery ? args.heads : args.kv_heads);
}

// Decodes item number -> (probe, batch or sequence, head, block of `owned` rows).
template <Side kSide>
FLASHBOB_HOST_DEVICE inline Item ItemAt(const PassArgs& args, int64_t number, int32_t owned) {
  const int64_t blocks = kSide == Side::kQuery ? args.query_blocks : args.key_blocks;
  const int32_t heads = kSide == Side::kQuery ? args.heads : args.kv_heads;
  Item item;
  const ItemPosition position = PositionOf(number, blocks, AllHeads<kSide>(args), args.interleave);
  int64_t block = position.block;
  int64_t rest = position.head;
  item.head = static_cast<int32_t>(rest % heads);
  rest /= heads;
  if (args.sequences == nullptr) {
    item.sequence.index = static_cast<int32_t>(rest % args.batch);
    item.probe = static_cast<int32_t>(rest / args.batch);
    item.sequence.mask = MaskOf(args, args.query_len, args.key_len);
  } else {
    item.probe = static_cast<int32_t>(rest);
    int32_t low = 0;
    int32_t high = args.batch;  // the sequence is in [low, high)
    while (high - low > 1) {
      const int32_t middle = (low + high) / 2;
      const SequenceInfo& info = args.sequences[middle];
      if ((kSide == Side::kQuery ? info.first_query_block : info.first_key_block) <= block) {
        low = middle;
      } else {
        high = middle;
      }
    }
    const SequenceInfo& info = args.sequences[low];
    block -= kSide == Side::kQuery ? info.first_query_block : info.first_key_block;
    item.sequence.index = low;
    item.sequence.query_start = info.query_start;
    item.sequence.key_start = info.key_start;
    item.sequence.mask = MaskOf(args, info.query_len, info.key_len);
  }
  item.block = static_cast<int32_t>(block);
  if (kSide == Side::kQuery && args.long_walks_first) {
    const int64_t in_sequence = (item.sequence.mask.query_len + owned - 1) / owned;
    item.block = static_cast<int32_t>(in_sequence - 1 - block);
  }
  return item;
}

// Tiles [begin, end) of `streamed` rows that a block's visible rows of the other side touch; empty where it sees none.
struct TileRange {
  int64_t begin = 0;
  int64_t end = 0;
};

FLASHBOB_HOST_DEVICE inline TileRange TilesOf(IndexRange rows, int32_t streamed) {
  if (rows.empty()) return {};
  return {rows.begin / streamed, (rows.end - 1) / streamed + 1};
}

// The key tiles of query block `block`.
FLASHBOB_HOST_DEVICE inline TileRange KeyTiles(const BandMask& mask, int64_t block, int32_t owned, int32_t streamed) {
  const int64_t begin = block * owned;
  const int64_t end = begin + owned < mask.query_len ? begin + owned : mask.query_len;
  if (begin >= end) return {};
  return TilesOf(mask.KeysOf(IndexRange{begin, end}), streamed);
}

// The query tiles of key block `block`, of one query head.
FLASHBOB_HOST_DEVICE inline TileRange QueryTiles(const BandMask& mask, int64_t block, int32_t owned, int32_t streamed) {
  const int64_t begin = block * owned;
  const int64_t end = begin + owned < mask.key_len ? begin + owned : mask.key_len;
  if (begin >= end) return {};
  return TilesOf(mask.QueriesOf(IndexRange{begin, end}), streamed);
}

// The part of an item's walk [begin, end) that this launch does, and what comes before and after it. An item that walks
// nothing is finished (its outputs are written) by the launch that begins at tile 0.
struct Segment {
  int64_t begin = 0;
  int64_t end = 0;
  bool resumes = false;   // accumulators come from state
  bool suspends = false;  // and go there
  bool active = false;
};

FLASHBOB_HOST_DEVICE inline Segment SegmentOf(const PassArgs& args, TileRange walk) {
  Segment segment;
  if (walk.begin >= walk.end) {
    segment.active = args.tile_begin == 0;
    return segment;
  }
  segment.begin = walk.begin > args.tile_begin ? walk.begin : args.tile_begin;
  segment.end = walk.end < args.tile_end ? walk.end : args.tile_end;
  segment.active = segment.begin < segment.end;
  segment.resumes = segment.begin > walk.begin;
  segment.suspends = segment.end < walk.end;
  return segment;
}

// The column pass walks the query tiles of every query head that shares its kv head, one head after the other: step
// `head_in_group * tiles_per_head + tile`. Steps of a head that its band does not touch are passed over.
FLASHBOB_HOST_DEVICE inline TileRange ColumnWalk(TileRange tiles, int64_t tiles_per_head, int64_t group) {
  if (tiles.begin >= tiles.end) return {};
  return {tiles.begin, (group - 1) * tiles_per_head + tiles.end};
}

// Where a row of a tensor begins, in elements.
FLASHBOB_HOST_DEVICE inline int64_t RowOffset(const TensorView& view, int32_t probe, int32_t batch, int32_t head,
                                              int64_t row) {
  return probe * view.probe + batch * view.batch + head * view.head + row * view.row;
}

}  // namespace flashbob::cuda

#endif  // FLASHBOB_KERNELS_CUDA_WALK_H_
