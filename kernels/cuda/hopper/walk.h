// Which block of which head a CTA owns, which tiles of the other side it walks, and in which order.
//
// Masked tiles (an edge of the band crosses them, or keys end within) come first, the others after them, so that each
// kind has its own loop: a test for the mask inside one loop costs a quarter of the speed. Host and device.
#ifndef FLASHBOB_KERNELS_CUDA_HOPPER_WALK_H_
#define FLASHBOB_KERNELS_CUDA_HOPPER_WALK_H_

#include <cstdint>

#include "kernels/cuda/hopper/mapped_args.h"
#include "kernels/cuda/walk.h"
#include "kernels/mask.h"

namespace flashbob::cuda::hopper {

// Visible diagonals (key - query - shift) as one unsigned comparison: diagonal - lowest <= count.
struct DiagonalRange {
  static constexpr int32_t kOpen = 1 << 28;   // beyond every diagonal
  static constexpr int32_t kNever = 1 << 30;  // what a row has that sees nothing: out of range whatever is subtracted
  int32_t lowest;
  uint32_t count;

  FLASHBOB_HOST_DEVICE explicit DiagonalRange(const BandMask& mask) {
    lowest = mask.left < 0 ? -kOpen : -static_cast<int32_t>(mask.left);
    const int32_t highest = mask.right < 0 ? kOpen : static_cast<int32_t>(mask.right);
    count = static_cast<uint32_t>(highest - lowest);
  }
};

// The first padded row of an item's sequence among the row scalars and sums of gQ of a head.
FLASHBOB_HOST_DEVICE inline int64_t FirstPaddedRow(const PassArgs& pass, const Item& item) {
  if (pass.sequences == nullptr) return 0;
  return pass.sequences[item.sequence.index].first_padded_row;
}

// The maps of an item's sequence.
FLASHBOB_HOST_DEVICE inline const CUtensorMap* MapsOf(const MappedArgs& args, const Item& item) {
  if (args.pass.sequences == nullptr) return args.maps;
  return static_cast<const CUtensorMap*>(args.pass.sequence_maps) +
         static_cast<int64_t>(item.sequence.index) * kMaxMaps;
}

// A map's coordinate on the batch axis.
FLASHBOB_HOST_DEVICE inline int32_t BatchOf(const MappedArgs& args, const Item& item) {
  return args.pass.sequences == nullptr ? item.sequence.index : 0;
}

// A map's coordinate on the probe axis: outside of it where the tensor is absent, which reads as zeros.
FLASHBOB_HOST_DEVICE inline int32_t ProbeOf(const MappedArgs& args, int map, int32_t probe) {
  return args.absent >> map & 1 ? 1 : probe;
}

FLASHBOB_HOST_DEVICE inline int32_t Clamp(int64_t value, int32_t low, int32_t high) {
  return value < low ? low : value > high ? high : static_cast<int32_t>(value);
}

// Floor and ceiling of a quotient whose dividend may be negative.
FLASHBOB_HOST_DEVICE inline int64_t FloorDivide(int64_t a, int32_t b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }
FLASHBOB_HOST_DEVICE inline int64_t CeilDivide(int64_t a, int32_t b) { return -FloorDivide(-a, b); }

// Tiles [begin, end), of which those in [full_begin, full_end) need no mask.
struct TileSpan {
  int32_t begin = 0;
  int32_t end = 0;
  int32_t full_begin = 0;
  int32_t full_end = 0;

  FLASHBOB_HOST_DEVICE int32_t masked() const { return end - begin - (full_end - full_begin); }
  FLASHBOB_HOST_DEVICE int32_t full() const { return full_end - full_begin; }
  // The i-th masked tile.
  FLASHBOB_HOST_DEVICE int32_t Masked(int32_t i) const {
    const int32_t before = full_begin - begin;
    return i < before ? begin + i : full_end + i - before;
  }
};

// The steps of a walk that this CTA takes in this launch: [begin, end), the first `masked` of them masked.
struct WalkShare {
  int32_t begin;
  int32_t end;
  int32_t masked;
  bool active;
  bool resumes;   // sums come from state
  bool suspends;  // and go there

  FLASHBOB_HOST_DEVICE WalkShare(const PassArgs& pass, int64_t number, int32_t steps, int32_t masked_steps) {
    const Segment segment = SegmentOf(pass, {0, steps});
    begin = static_cast<int32_t>(segment.begin);
    end = static_cast<int32_t>(segment.end);
    if (pass.parts > 1) {
      const int64_t part = number % pass.parts;
      begin = static_cast<int32_t>(steps * part / pass.parts);
      end = static_cast<int32_t>(steps * (part + 1) / pass.parts);
    }
    masked = Clamp(masked_steps - begin, 0, end - begin);
    active = segment.active;
    resumes = segment.resumes;
    suspends = segment.suspends;
  }
  FLASHBOB_HOST_DEVICE int32_t steps() const { return end - begin; }
};

struct ColumnStep {
  int32_t head_in_group;
  int32_t query0;
};

// The walk of a block of keys over the queries of every head of its group.
struct ColumnWalk {
  Item item;  // head is a kv head
  int32_t key0;
  int32_t tile_rows;
  int32_t first;  // full tile that this block starts with: blocks side by side start apart, and add to gQ apart
  TileSpan span;
  int32_t masked_steps;
  int32_t steps;

  // `number`: of the CTA in the launch.
  FLASHBOB_HOST_DEVICE ColumnWalk(const MappedArgs& args, int64_t number, int32_t keys, int32_t queries)
      : tile_rows(queries) {
    const PassArgs& pass = args.pass;
    item = ItemAt<Side::kKey>(pass, pass.item_begin + number / pass.parts, keys);
    key0 = item.block * keys;
    const BandMask& mask = item.sequence.mask;
    const TileRange visible = QueryTiles(mask, item.block, keys, queries);
    if (visible.begin < visible.end) {
      span.begin = static_cast<int32_t>(visible.begin);
      span.end = static_cast<int32_t>(visible.end);
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
    first = span.full() > 0 && mask.right < 0 && pass.turn == nullptr ? 2 * item.block % span.full() : 0;
    masked_steps = span.masked() * args.group;
    steps = (span.end - span.begin) * args.group;
  }

  FLASHBOB_HOST_DEVICE ColumnStep At(int32_t step) const {
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
  Item item;
  int32_t query0;
  int32_t tile_rows;
  TileSpan span;
  int32_t masked_steps;
  int32_t steps;

  FLASHBOB_HOST_DEVICE RowWalk(const MappedArgs& args, int64_t number, int32_t queries, int32_t keys)
      : tile_rows(keys) {
    const PassArgs& pass = args.pass;
    item = ItemAt<Side::kQuery>(pass, pass.item_begin + number / pass.parts, queries);
    query0 = item.block * queries;
    const BandMask& mask = item.sequence.mask;
    const int64_t query_end = query0 + queries < mask.query_len ? query0 + queries : mask.query_len;
    const TileRange visible = KeyTiles(mask, item.block, queries, keys);
    if (visible.begin < visible.end) {
      span.begin = static_cast<int32_t>(visible.begin);
      span.end = static_cast<int32_t>(visible.end);
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

  FLASHBOB_HOST_DEVICE int32_t Key0(int32_t step) const {
    return (step < masked_steps ? span.Masked(step) : span.full_begin + step - masked_steps) * tile_rows;
  }
};

}  // namespace flashbob::cuda::hopper

#endif  // FLASHBOB_KERNELS_CUDA_HOPPER_WALK_H_
