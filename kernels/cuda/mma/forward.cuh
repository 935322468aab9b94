// Forward on tensor cores: S = tau Q K^T, L = logsumexp(S), O = softmax(S) V. 2 products.
//
// A CTA of 4 warps owns 128 queries and streams tiles of 64 keys; a warp has 32 queries. Per tile:
//     S (32 x 64 a warp, registers) = Q K^T      left operand Q (registers at D = 64, shared memory above), right K
//     online softmax in base 2, P packed to 16 bits in registers
//     O (32 x D, registers) += P V               left operand P, right V through the transposing load
// Shared memory: Q 128 rows, K and V 64 rows each, one buffer: V arrives under the first product, the next K under the
// second. D = 64: 41 KB, D = 128: 74 KB; two CTAs a multiprocessor. TF32 has the tiles of twice its head dim, fp64 of
// four times; where rows take 512 bytes a warp has 16 queries, and tiles are 32 keys.
#ifndef FLASHBOB_KERNELS_CUDA_MMA_FORWARD_CUH_
#define FLASHBOB_KERNELS_CUDA_MMA_FORWARD_CUH_

#include "kernels/cuda/mma/common.cuh"

namespace flashbob::cuda::mma {

template <typename Element, int kHeadDim, bool kTakesAll = false>
struct ForwardConfig {
  using T = Element;
  static constexpr bool kGeneral = kTakesAll;
  static constexpr int kDim = kHeadDim;
  static constexpr int kRowBytes = kDim * static_cast<int>(sizeof(T));
  static constexpr int kWarps = 4;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kCtasPerSm = 2;
  static constexpr int kTilesM = kRowBytes <= 256 ? 2 : 1;
  static constexpr int kQueries = 16 * kTilesM * kWarps;
  static constexpr int kKeys = kRowBytes <= 256 ? 64 : 32;
  static constexpr int kPitch = kRowBytes + kPadding<T>;
  static constexpr bool kQueriesInRegisters = kRowBytes <= 128;
  static constexpr size_t kSharedBytes = static_cast<size_t>(kQueries + 2 * kKeys) * kPitch;
  static constexpr size_t kStateBytes =
      static_cast<size_t>(kThreads) * (kTilesM * kDim / 2 + 4 * kTilesM) * sizeof(RealOf<T>);
  static constexpr double kFlopsPerSm = kIsDouble<T>  ? 0.19e12
                                        : kIsTf32<T>  ? 0.77e12
                                        : kDim <= 64  ? 2.3e12
                                        : kDim <= 128 ? 2.7e12
                                                      : 1.9e12;
};

template <typename Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kCtasPerSm) Forward(__grid_constant__ const PassArgs args) {
  using T = typename Config::T;
  using Real = RealOf<T>;
  constexpr int kDim = Config::kDim;
  constexpr int kThreads = Config::kThreads;
  constexpr int kKeys = Config::kKeys;
  constexpr int kPitch = Config::kPitch;
  constexpr int kScoreTiles = kKeys / 8;
  constexpr int kM = Config::kTilesM;
  constexpr int kDepth = kDim / kStep<T>;
  constexpr bool kGeneral = Config::kGeneral;
  extern __shared__ __align__(128) unsigned char shared[];
  const uint32_t q_tile = tile::SharedAddress(shared);
  const uint32_t k_tile = q_tile + Config::kQueries * kPitch;
  const uint32_t v_tile = k_tile + kKeys * kPitch;

  const Item item = ItemAt<Side::kQuery>(args, args.item_begin + blockIdx.x, Config::kQueries);
  const BandMask& mask = item.sequence.mask;
  const int32_t batch = item.sequence.index;
  const Segment segment = SegmentOf(args, KeyTiles(mask, item.block, Config::kQueries, kKeys));
  if (!segment.active) return;
  const auto query_len = static_cast<int32_t>(mask.query_len);
  const auto key_len = static_cast<int32_t>(mask.key_len);
  const int32_t query0 = item.block * Config::kQueries;
  const int32_t kv_head = item.head / (args.heads / args.kv_heads);
  const Lane lane;
  const int32_t row0 = query0 + lane.warp * 16 * kM + lane.g;  // this thread's rows: row0 + 8 i
  const int alignment = kGeneral ? args.row_alignment : 16;
  const bool unaligned = alignment < 16;

  const int64_t key_start = item.sequence.key_start;
  const TileLoader<T, kThreads, kKeys, kDim, kGeneral> k_loader(args.k, 0, batch, kv_head, key_start, args.head_dim);
  const TileLoader<T, kThreads, kKeys, kDim, kGeneral> v_loader(args.v, 0, batch, kv_head, key_start, args.value_dim);
  TileLoader<T, kThreads, Config::kQueries, kDim, kGeneral>(args.q, 0, batch, item.head, item.sequence.query_start,
                                                            args.head_dim)
      .Load(q_tile, query0, query_len, alignment);
  tile::CommitCopies();
  if (segment.begin < segment.end) {
    k_loader.Load(k_tile, static_cast<int32_t>(segment.begin) * kKeys, key_len, alignment);
  }
  tile::CommitCopies();

  Sums<Real, kM, kDim / 8> sum;
  Real largest[2 * kM];  // of raw scores (the scale is positive), running
  Real total[2 * kM];    // this thread's part of the sum of exp
  if (segment.resumes) {
    const Real* state = LoadState<kThreads>(StateOf<Real>(args, blockIdx.x, Config::kStateBytes), sum);
#pragma unroll
    for (int i = 0; i < 2 * kM; ++i) {
      largest[i] = state[i * kThreads];
      total[i] = state[(2 * kM + i) * kThreads];
    }
  } else {
    Clear(sum);
#pragma unroll
    for (int i = 0; i < 2 * kM; ++i) {
      largest[i] = -Real(INFINITY);
      total[i] = 0;
    }
  }

  const Real scale2 = static_cast<Real>(args.scale) * kLog2E<Real>;
  const TileMask tile_mask(mask);
  // Of real rows: what the others give is not stored.
  const IndexRange unmasked = KeysOfAll(mask, {query0, min(query0 + Config::kQueries, query_len)});
  const uint32_t q_left = q_tile + PlainOffset<T, kPitch>(lane) + lane.warp * 16 * kM * kPitch;
  const uint32_t k_right = k_tile + CrossedOffset<T, kPitch>(lane);
  const uint32_t v_right = v_tile + TransposedRightOffset<T, kPitch>(lane);
  Operand<T> q[Config::kQueriesInRegisters ? kDepth : 1][kM];
  if constexpr (Config::kQueriesInRegisters) {
    tile::WaitCopies<0>();
    __syncthreads();
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
#pragma unroll
      for (int m = 0; m < kM; ++m) LoadOperand<T, kPitch>(q[d][m], q_left + m * 16 * kPitch + d * 32);
    }
  }

  for (int64_t step = segment.begin; step < segment.end; ++step) {
    const int32_t key0 = static_cast<int32_t>(step) * kKeys;
    tile::WaitCopies<0>();
    __syncthreads();  // K is there, and every warp is done with the last V
    v_loader.Load(v_tile, key0, key_len, alignment);
    tile::CommitCopies();
    Sums<Real, kM, kScoreTiles> scores;
    Clear(scores);
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      Operand<T> left[kM];
      if constexpr (!Config::kQueriesInRegisters) {
#pragma unroll
        for (int m = 0; m < kM; ++m) LoadOperand<T, kPitch>(left[m], q_left + m * 16 * kPitch + d * 32);
      }
#pragma unroll
      for (int n = 0; n < kScoreTiles; n += 2) {
        Operand<T> right;
        LoadOperand<T, kPitch>(right, k_right + n * 8 * kPitch + d * 32);
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          const Operand<T>& a = Config::kQueriesInRegisters ? q[Config::kQueriesInRegisters ? d : 0][m] : left[m];
          MultiplyPair<T>(scores[m][n], scores[m][n + 1], a, right);
        }
      }
    }

    if (key0 < unmasked.begin || key0 + kKeys > unmasked.end) {
      ForEach(scores, [&](int m, int n, int i, Real& x) {
        if (!tile_mask.Visible(row0 + m * 16 + i / 2 * 8, key0 + n * 8 + lane.t * 2 + i % 2)) x = -Real(INFINITY);
      });
    }

    LeftOperands<T, kKeys> p[kM];
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = m * 2 + half;
        Real highest = largest[row];
#pragma unroll
        for (int n = 0; n < kScoreTiles; ++n) {
          highest = fmax(highest, fmax(scores[m][n][half * 2], scores[m][n][half * 2 + 1]));
        }
        highest = fmax(highest, __shfl_xor_sync(0xffffffffu, highest, 1));
        highest = fmax(highest, __shfl_xor_sync(0xffffffffu, highest, 2));
        // A row that has seen no key yet has scores of -inf only: any finite maximum gives it P = 0.
        const Real offset = highest == -Real(INFINITY) ? 0.0f : highest * scale2;
        const Real correction = highest == -Real(INFINITY) ? 1.0f : tile::Exp2(largest[row] * scale2 - offset);
        largest[row] = highest;
        Real tile_total = 0;
#pragma unroll
        for (int n = 0; n < kScoreTiles; ++n) {
          const Real low = tile::Exp2(scores[m][n][half * 2] * scale2 - offset);
          const Real high = tile::Exp2(scores[m][n][half * 2 + 1] * scale2 - offset);
          tile_total += low + high;
          SetLeft<T>(p[m], n, half, low, high);
        }
        total[row] = total[row] * correction + tile_total;
#pragma unroll
        for (int n = 0; n < kDim / 8; ++n) {
          sum[m][n][half * 2] *= correction;
          sum[m][n][half * 2 + 1] *= correction;
        }
      }
    }

    tile::WaitCopies<0>();
    __syncthreads();  // V is there, and every warp is done with K
    if (step + 1 < segment.end) k_loader.Load(k_tile, key0 + kKeys, key_len, alignment);
    tile::CommitCopies();
#pragma unroll
    for (int s = 0; s < kKeys / kStep<T>; ++s) {
#pragma unroll
      for (int n = 0; n < kDim / 8; n += 2) {
        Operand<T> right;
        LoadTransposedRight<T, kPitch>(right, v_right + StepRow<T>(s) * kPitch + n * 8 * sizeof(T));
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          MultiplyPair<T>(sum[m][n], sum[m][n + 1], p[m][s], right);
        }
      }
    }
  }

  tile::WaitCopies<0>();
  if (segment.suspends) {
    Real* state = SaveState<kThreads>(StateOf<Real>(args, blockIdx.x, Config::kStateBytes), sum);
#pragma unroll
    for (int i = 0; i < 2 * kM; ++i) {
      state[i * kThreads] = largest[i];
      state[(2 * kM + i) * kThreads] = total[i];
    }
    return;
  }
#pragma unroll
  for (int row = 0; row < 2 * kM; ++row) {
    const int32_t query = row0 + row * 8;
    const Real row_total = SumOverRow(total[row]);
    const bool none = row_total == 0;
    const Real factor = none ? 0.0f : 1.0f / row_total;
    if (query >= query_len) continue;
    const int64_t at_row = item.sequence.query_start + query;
    if (lane.t == 0 && args.out_lse.data != nullptr) {
      static_cast<Real*>(args.out_lse.data)[RowOffset(args.out_lse, 0, batch, item.head, at_row)] =
          none ? -Real(INFINITY) : (largest[row] * scale2 + log2(row_total)) / kLog2E<Real>;
    }
    if (args.out.data == nullptr) continue;
    const int64_t at = RowOffset(args.out, 0, batch, item.head, at_row);
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
      const int32_t column = n * 8 + lane.t * 2;
      if (column >= args.value_dim) continue;
      StorePair<T>(args.out.data, at + column, sum[row / 2][n][row % 2 * 2] * factor,
                   sum[row / 2][n][row % 2 * 2 + 1] * factor, args.value_dim - column, unaligned,
                   args.o_is_accumulator);
    }
  }
}

}  // namespace flashbob::cuda::mma

#endif  // FLASHBOB_KERNELS_CUDA_MMA_FORWARD_CUH_
