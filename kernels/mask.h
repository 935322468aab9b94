// BandMask: which keys a query sees, within one sequence. The one mask policy of every pass of every engine.
//
// Key j is visible to query i when i + shift - left <= j <= i + shift + right; a side of -1 is open. `shift` is 0
// (aligned top-left) or key_len - query_len (bottom-right). Causal is right = 0. (math.md, "The mask".)
// The keys that a row sees are one interval, and so are the rows that see a key: passes ask for these intervals and
// never test a pair, except inside a tile that an edge of the band crosses.
//
// Plain data, no CUDA headers: kernels take it by value.
#ifndef FLASHBOB_KERNELS_MASK_H_
#define FLASHBOB_KERNELS_MASK_H_

#include <cstdint>

#if defined(__CUDACC__)
#define FLASHBOB_HOST_DEVICE __host__ __device__
#else
#define FLASHBOB_HOST_DEVICE
#endif

namespace flashbob {

// Half-open interval of indices; empty where end <= begin.
struct IndexRange {
  int64_t begin = 0;
  int64_t end = 0;

  FLASHBOB_HOST_DEVICE constexpr bool empty() const { return end <= begin; }
  FLASHBOB_HOST_DEVICE constexpr int64_t size() const { return end > begin ? end - begin : 0; }
};

// How much of a rectangle of the score matrix is visible.
enum class Coverage : uint8_t { kNone, kPartial, kFull };

struct BandMask {
  int64_t query_len = 0;
  int64_t key_len = 0;
  int64_t left = -1;
  int64_t right = -1;
  int64_t shift = 0;

  // The keys that query i sees, within [0, key_len).
  FLASHBOB_HOST_DEVICE constexpr IndexRange KeysOf(int64_t i) const {
    const int64_t begin = left < 0 ? 0 : i + shift - left;
    const int64_t end = right < 0 ? key_len : i + shift + right + 1;
    return {begin > 0 ? begin : 0, end < key_len ? end : key_len};
  }

  // The queries that see key j, within [0, query_len).
  FLASHBOB_HOST_DEVICE constexpr IndexRange QueriesOf(int64_t j) const {
    const int64_t begin = right < 0 ? 0 : j - shift - right;
    const int64_t end = left < 0 ? query_len : j - shift + left + 1;
    return {begin > 0 ? begin : 0, end < query_len ? end : query_len};
  }

  // A superset, one interval, of the keys that any query of a non-empty range sees (exact but for rows that see none).
  FLASHBOB_HOST_DEVICE constexpr IndexRange KeysOf(IndexRange queries) const {
    return {KeysOf(queries.begin).begin, KeysOf(queries.end - 1).end};
  }

  // A superset, one interval, of the queries that see any key of a non-empty range.
  FLASHBOB_HOST_DEVICE constexpr IndexRange QueriesOf(IndexRange keys) const {
    return {QueriesOf(keys.begin).begin, QueriesOf(keys.end - 1).end};
  }

  FLASHBOB_HOST_DEVICE constexpr bool Visible(int64_t i, int64_t j) const {
    return (left < 0 || j >= i + shift - left) && (right < 0 || j <= i + shift + right);
  }

  // How much of `queries` x `keys` (both non-empty and within the lengths) is visible. The band is a diagonal strip:
  // the rectangle is fully visible when its two outer corners are, and not at all when it lies wholly to one side.
  FLASHBOB_HOST_DEVICE constexpr Coverage Cover(IndexRange queries, IndexRange keys) const {
    const int64_t first_diagonal = keys.begin - (queries.end - 1) - shift;  // smallest j - i - shift
    const int64_t last_diagonal = keys.end - 1 - queries.begin - shift;     // largest
    const bool right_of_band = right >= 0 && first_diagonal > right;
    const bool left_of_band = left >= 0 && last_diagonal < -left;
    if (right_of_band || left_of_band) return Coverage::kNone;
    const bool full = (right < 0 || last_diagonal <= right) && (left < 0 || first_diagonal >= -left);
    return full ? Coverage::kFull : Coverage::kPartial;
  }

  // Number of visible pairs, in closed form.
  double VisiblePairs() const;
};

}  // namespace flashbob

#endif  // FLASHBOB_KERNELS_MASK_H_
