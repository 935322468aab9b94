// What a column kernel is made of: its terms, its tile sizes, its map of shared memory, and the order of its walk.
#ifndef FLASHBOB_KERNELS_CUDA_MMA_COLUMN_TILES_CUH_
#define FLASHBOB_KERNELS_CUDA_MMA_COLUMN_TILES_CUH_

#include <type_traits>

#include "kernels/cuda/mma/common.cuh"

namespace flashbob::cuda::mma {

// Which terms a column kernel computes.
template <bool kHasTq, bool kHasTk, bool kHasTv, bool kHasTdo>
struct Terms {
  static constexpr bool kTq = kHasTq;
  static constexpr bool kTk = kHasTk;
  static constexpr bool kTv = kHasTv;
  static constexpr bool kTdo = kHasTdo;
  static constexpr bool kG = kTq || kTk;
  static constexpr bool kV = kG || kTdo;  // whether V is needed
  static constexpr bool kDo = kG || kTv;  // whether dO is needed
};
using FirstOrder = Terms<false, false, false, true>;
using SecondOrder = Terms<true, true, true, false>;
using AllTerms = Terms<true, true, true, true>;

// Tile sizes: kWarps warps, kSplit of them on the same 16 kTilesM keys; tiles of kQueries queries in kStages buffers;
// pieces of gQ of kPieceM x kPieceN.
template <int kWarpCount, int kMTiles, int kSplitCount, int kQueryCount, int kStageCount, int kPieceRows,
          int kPieceColumns, int kCtas>
struct ColumnTiles {
  static constexpr int kWarps = kWarpCount;
  static constexpr int kTilesM = kMTiles;
  static constexpr int kSplit = kSplitCount;
  static constexpr int kStages = kStageCount;
  static constexpr int kQueries = kQueryCount;
  static constexpr int kPieceM = kPieceRows;
  static constexpr int kPieceN = kPieceColumns;
  static constexpr int kCtasPerSm = kCtas;
};

template <typename Element, int kHeadDim, typename TermSet, typename Tiles, bool kTakesAll = false>
struct ColumnsConfig : Tiles {
  using T = Element;
  using Term = TermSet;
  static constexpr bool kGeneral = kTakesAll;
  static constexpr int kDim = kHeadDim;
  static constexpr int kThreads = 32 * Tiles::kWarps;
  static constexpr int kKeys = 16 * Tiles::kTilesM * Tiles::kWarps / Tiles::kSplit;
  static constexpr int kPitch = kDim * static_cast<int>(sizeof(T)) + kPadding<T>;
  static constexpr int kScorePitch = Tiles::kQueries * static_cast<int>(sizeof(T)) + kScorePadding;
  static constexpr uint32_t kKeyBytes = kKeys * kPitch;
  static constexpr uint32_t kQueryBytes = Tiles::kQueries * kPitch;
  static constexpr uint32_t kScoreBytes = kKeys * kScorePitch;
  static constexpr bool kSharedX = Tiles::kSplit > 1;  // X and P pass through shared memory
  static_assert(!kSharedX || sizeof(T) == 2, "left operands of wider types come in the order of fragments");
  // Shared memory: keys; scores; then a stage, once or twice: queries and their scalars (lse, d, c, r: kQueries each).
  static constexpr uint32_t kK = 0;
  static constexpr uint32_t kV = kK + kKeyBytes;
  static constexpr uint32_t kTk = kV + (Term::kV ? kKeyBytes : 0);
  static constexpr uint32_t kTv = kTk + (Term::kTk ? kKeyBytes : 0);
  static constexpr uint32_t kY = kTv + (Term::kTv ? kKeyBytes : 0);
  static constexpr uint32_t kZ = kY + kScoreBytes;
  static constexpr uint32_t kX = kZ + (Term::kTk || (kSharedX && Term::kTq) ? kScoreBytes : 0);
  static constexpr uint32_t kP = kX + (kSharedX && Term::kG ? kScoreBytes : 0);
  static constexpr uint32_t kQ = kP + (kSharedX && Term::kTdo ? kScoreBytes : 0);
  static constexpr uint32_t kDo = kQ + kQueryBytes;
  static constexpr uint32_t kTq = kDo + (Term::kDo ? kQueryBytes : 0);
  static constexpr uint32_t kTdo = kTq + (Term::kTq ? kQueryBytes : 0);
  static constexpr uint32_t kScalars = kTdo + (Term::kTdo ? kQueryBytes : 0);
  static constexpr uint32_t kStageBytes = kScalars + 4 * Tiles::kQueries * sizeof(RealOf<T>) - kQ;
  static constexpr size_t kSharedBytes = kQ + Tiles::kStages * kStageBytes;
  static constexpr size_t kStateBytes =
      static_cast<size_t>(kThreads) * Tiles::kTilesM * kDim / Tiles::kSplit * sizeof(RealOf<T>);
  static constexpr double kFlopsPerSm = kIsDouble<T> ? 0.12e12
                                        : kIsTf32<T> ? (kDim <= 64 ? 0.56e12 : 0.26e12)
                                        : kGeneral   ? 1.3e12
                                                     : 2.1e12;
};

// The sizes that are built, as measured on an H200. `Compact` ones fit the 99 KB of shared memory of an 8.6 or 8.9.
template <int kDim>
using FirstOrderTiles =
    std::conditional_t<kDim <= 64, ColumnTiles<4, 2, 1, 32, 1, 32, 16, 2>, ColumnTiles<8, 2, 2, 64, 2, 32, 32, 1>>;
template <int kDim>
using SecondOrderTiles =
    std::conditional_t<kDim <= 64, ColumnTiles<8, 2, 2, 64, 1, 32, 16, 1>, ColumnTiles<8, 1, 1, 32, 1, 32, 16, 1>>;
using CompactFirstOrderTiles = ColumnTiles<4, 1, 1, 32, 1, 32, 32, 1>;  // D = 128; D = 64 is compact as it is
template <int kDim>
using CompactTiles =
    std::conditional_t<kDim <= 64, ColumnTiles<4, 1, 1, 32, 1, 32, 16, 1>, ColumnTiles<4, 1, 1, 16, 1, 16, 32, 1>>;
using Dim256Tiles = ColumnTiles<8, 1, 2, 32, 1, 32, 32, 1>;
using Float64Tiles = ColumnTiles<4, 1, 1, 16, 1, 16, 16, 1>;  // D = 64
template <int kDim>
using Tf32Tiles =
    std::conditional_t<kDim <= 64, ColumnTiles<8, 1, 1, 32, 1, 16, 16, 1>, ColumnTiles<4, 1, 1, 16, 1, 16, 32, 1>>;

// The walk of a column item over the query tiles of the heads of its group, in the order in which this CTA takes them.
// Steps are numbered as ColumnWalk does. CTAs that start at the same tile add to the same rows of gQ at the same time:
// where the walk has no gaps, each starts `offset` steps on and comes round.
template <int kQueries>
class ColumnCursor {
 public:
  int32_t head = 0;
  int32_t query0 = 0;

  __device__ ColumnCursor(const Segment& segment, const TileRange& tiles, int32_t tiles_per_head, int32_t first_head,
                          int32_t group, int32_t offset)
      : begin_(static_cast<int32_t>(segment.begin)),
        end_(static_cast<int32_t>(segment.end)),
        left_(end_ - begin_),
        tiles_begin_(static_cast<int32_t>(tiles.begin)),
        tiles_end_(static_cast<int32_t>(tiles.end)),
        tiles_per_head_(tiles_per_head),
        first_head_(first_head) {
    const bool gaps = group > 1 && tiles_end_ - tiles_begin_ < tiles_per_head;
    if (left_ > 0) Seek(begin_ + (gaps ? 0 : offset % left_));
  }
  __device__ bool done() const { return left_ <= 0; }
  __device__ void Next() {
    --left_;
    ++step_;
    query0 += kQueries;
    if (step_ == end_) {
      if (left_ > 0) Seek(begin_);
    } else if (query0 == tiles_end_ * kQueries) {
      Seek(step_);
    }
  }

 private:
  // Goes to `step`, or to the next one that is a tile.
  __device__ void Seek(int32_t step) {
    int32_t in_group = step / tiles_per_head_;
    int32_t tile = step - in_group * tiles_per_head_;
    if (tile >= tiles_end_) {
      ++in_group;
      tile = tiles_begin_;
    } else if (tile < tiles_begin_) {
      tile = tiles_begin_;
    }
    step_ = in_group * tiles_per_head_ + tile;
    left_ -= step_ - step;
    head = first_head_ + in_group;
    query0 = tile * kQueries;
  }

  int32_t begin_;
  int32_t end_;
  int32_t left_;  // steps to go
  int32_t tiles_begin_;
  int32_t tiles_end_;
  int32_t tiles_per_head_;
  int32_t first_head_;
  int32_t step_ = 0;
};

}  // namespace flashbob::cuda::mma

#endif  // FLASHBOB_KERNELS_CUDA_MMA_COLUMN_TILES_CUH_
