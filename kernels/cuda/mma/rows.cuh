// Rows pass on tensor cores: the JVP, which is pass 1 of BoB (t stands for u). 5 products.
//
//     P = exp(S - L)      G = tau (tQ K^T + Q tK^T)      c = rowsum(P . G)
//     tO = (P . G) V + P tV - c O                        tL = c
//     r = rowsum(dO . tO) + rowsum(tdO . O)              D = rowsum(dO . O)
//
// A CTA of 4 warps owns 128 queries (of 2 warps, 64, where there is little shared memory) and streams tiles of 64 (D =
// 64) or 32 (D = 128) keys; a warp has 32 queries. S and G (32 x keys each, registers) share the loads of K; P and P .
// G, packed to 16 bits, are left operands of the products with tV and V, which share one accumulator (32 x D,
// registers). Shared memory: Q, tQ 128 rows each; K, tK, V, tV one buffer each: V and tV arrive under the first
// products, the next K and tK under the second. D = 64: 82 KB, D = 128: 111 KB; two CTAs a multiprocessor. TF32 has the
// tiles of twice its head dim, fp64 of four times; where rows take 512 bytes a warp has 16 queries, and tiles 16 keys.
//
// The general kernel computes the products of the tangents that there are.
//
// fp16: P and P . G are multiplied by 2^power_shift (P is about 1/N, below fp16's normal range in long rows).
#ifndef FLASHBOB_KERNELS_CUDA_MMA_ROWS_CUH_
#define FLASHBOB_KERNELS_CUDA_MMA_ROWS_CUH_

#include "kernels/cuda/mma/common.cuh"

namespace flashbob::cuda::mma {

template <typename Element, int kHeadDim, int kWarpCount = 4, bool kTakesAll = false>
struct RowsConfig {
  using T = Element;
  static constexpr bool kGeneral = kTakesAll;
  static constexpr int kDim = kHeadDim;
  static constexpr int kRowBytes = kDim * static_cast<int>(sizeof(T));
  static constexpr int kWarps = kWarpCount;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kCtasPerSm = 2;
  static constexpr int kTilesM = kRowBytes <= 256 ? 2 : 1;
  static constexpr int kQueries = 16 * kTilesM * kWarps;
  static constexpr int kKeys = kRowBytes <= 128 ? 64 : kRowBytes <= 256 ? 32 : 16;
  static constexpr int kPitch = kRowBytes + kPadding<T>;
  static constexpr size_t kSharedBytes = static_cast<size_t>(2 * kQueries + 4 * kKeys) * kPitch;
  static constexpr size_t kStateBytes =
      static_cast<size_t>(kThreads) * (kTilesM * kDim / 2 + 2 * kTilesM) * sizeof(RealOf<T>);
  static constexpr double kFlopsPerSm = kIsDouble<T> ? 0.26e12 : kIsTf32<T> ? 0.74e12 : kGeneral ? 1.9e12 : 3.0e12;
};

template <typename Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kCtasPerSm)
    TangentRows(__grid_constant__ const PassArgs args) {
  using T = typename Config::T;
  using Real = RealOf<T>;
  constexpr int kDim = Config::kDim;
  constexpr int kThreads = Config::kThreads;
  constexpr int kKeys = Config::kKeys;
  constexpr int kPitch = Config::kPitch;
  constexpr int kM = Config::kTilesM;
  constexpr int kScoreTiles = kKeys / 8;
  constexpr bool kGeneral = Config::kGeneral;
  extern __shared__ __align__(128) unsigned char shared[];
  const uint32_t q_tile = tile::SharedAddress(shared);
  const uint32_t tq_tile = q_tile + Config::kQueries * kPitch;
  const uint32_t k_tile = tq_tile + Config::kQueries * kPitch;
  const uint32_t tk_tile = k_tile + kKeys * kPitch;
  const uint32_t v_tile = tk_tile + kKeys * kPitch;
  const uint32_t tv_tile = v_tile + kKeys * kPitch;

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

  const bool has_tq = !kGeneral || args.tq.data != nullptr;
  const bool has_tk = !kGeneral || args.tk.data != nullptr;
  const bool has_tv = !kGeneral || args.tv.data != nullptr;
  const int alignment = kGeneral ? args.row_alignment : 16;
  const bool unaligned = alignment < 16;

  using KeyLoader = TileLoader<T, kThreads, kKeys, kDim, kGeneral>;
  using QueryLoader = TileLoader<T, kThreads, Config::kQueries, kDim, kGeneral>;
  const int64_t key_start = item.sequence.key_start;
  const int64_t query_start = item.sequence.query_start;
  const KeyLoader k_loader(args.k, 0, batch, kv_head, key_start, args.head_dim);
  const KeyLoader tk_loader(args.tk, item.probe, batch, kv_head, key_start, args.head_dim);
  const KeyLoader v_loader(args.v, 0, batch, kv_head, key_start, args.value_dim);
  const KeyLoader tv_loader(args.tv, item.probe, batch, kv_head, key_start, args.value_dim);
  QueryLoader(args.q, 0, batch, item.head, query_start, args.head_dim).Load(q_tile, query0, query_len, alignment);
  if (has_tq) {
    QueryLoader(args.tq, item.probe, batch, item.head, query_start, args.head_dim)
        .Load(tq_tile, query0, query_len, alignment);
  }
  const auto load_k = [&](int32_t key) {
    k_loader.Load(k_tile, key, key_len, alignment);
    if (has_tk) tk_loader.Load(tk_tile, key, key_len, alignment);
    tile::CommitCopies();
  };
  if (segment.begin < segment.end) load_k(static_cast<int32_t>(segment.begin) * kKeys);
  tile::CommitCopies();

  Sums<Real, kM, kDim / 8> sum;
  Real c[2 * kM] = {};  // this thread's part, times 2^power_shift
  if (segment.resumes) {
    const Real* state = LoadState<kThreads>(StateOf<Real>(args, blockIdx.x, Config::kStateBytes), sum);
#pragma unroll
    for (int i = 0; i < 2 * kM; ++i) c[i] = state[i * kThreads];
  } else {
    Clear(sum);
  }

  const auto scale = static_cast<Real>(args.scale);
  const Real scale2 = scale * kLog2E<Real>;
  Real lse[2 * kM];  // +inf for a row that sees no key or does not exist, so that P = 0
  Real lse2[2 * kM];
#pragma unroll
  for (int i = 0; i < 2 * kM; ++i) {
    const int32_t query = row0 + i * 8;
    lse[i] = Real(INFINITY);
    if (query < query_len) {
      const Real given = static_cast<const Real*>(
          args.lse.data)[RowOffset(args.lse, 0, batch, item.head, item.sequence.query_start + query)];
      if (given != -Real(INFINITY)) lse[i] = given;
    }
    lse2[i] = lse[i] * kLog2E<Real> - static_cast<Real>(args.power_shift);
  }
  const TileMask tile_mask(mask);
  const IndexRange unmasked = KeysOfAll(mask, {query0, min(query0 + Config::kQueries, query_len)});
  const uint32_t q_left = q_tile + PlainOffset<T, kPitch>(lane) + lane.warp * 16 * kM * kPitch;
  constexpr uint32_t kToTangentQueries = Config::kQueries * kPitch;
  constexpr uint32_t kToTangentKeys = kKeys * kPitch;
  const uint32_t k_right = k_tile + CrossedOffset<T, kPitch>(lane);
  const uint32_t v_right = v_tile + TransposedRightOffset<T, kPitch>(lane);

  for (int64_t step = segment.begin; step < segment.end; ++step) {
    const int32_t key0 = static_cast<int32_t>(step) * kKeys;
    tile::WaitCopies<0>();
    __syncthreads();  // K and tK are there, and every warp is done with the last V and tV
    if (has_tq || has_tk) v_loader.Load(v_tile, key0, key_len, alignment);
    if (has_tv) tv_loader.Load(tv_tile, key0, key_len, alignment);
    tile::CommitCopies();

    Sums<Real, kM, kScoreTiles> s;
    Sums<Real, kM, kScoreTiles> g;
    Clear(s);
    Clear(g);
    const auto add_scores = [&](auto with_tq, auto with_tk) {
#pragma unroll
      for (int d = 0; d < kDim / kStep<T>; ++d) {
        Operand<T> q[kM];
        Operand<T> tq[kM];
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          LoadOperand<T, kPitch>(q[m], q_left + m * 16 * kPitch + d * 32);
          if constexpr (with_tq.value)
            LoadOperand<T, kPitch>(tq[m], q_left + kToTangentQueries + m * 16 * kPitch + d * 32);
        }
#pragma unroll
        for (int n = 0; n < kScoreTiles; n += 2) {
          Operand<T> k;
          Operand<T> tk;
          LoadOperand<T, kPitch>(k, k_right + n * 8 * kPitch + d * 32);
          if constexpr (with_tk.value) LoadOperand<T, kPitch>(tk, k_right + kToTangentKeys + n * 8 * kPitch + d * 32);
#pragma unroll
          for (int m = 0; m < kM; ++m) {
            MultiplyPair<T>(s[m][n], s[m][n + 1], q[m], k);
            if constexpr (with_tq.value) MultiplyPair<T>(g[m][n], g[m][n + 1], tq[m], k);
            if constexpr (with_tk.value) MultiplyPair<T>(g[m][n], g[m][n + 1], q[m], tk);
          }
        }
      }
    };
    WithFlag<true, !kGeneral>(has_tq, [&](auto with_tq) {
      WithFlag<true, !kGeneral>(has_tk, [&](auto with_tk) { add_scores(with_tq, with_tk); });
    });

    if (key0 < unmasked.begin || key0 + kKeys > unmasked.end) {
      ForEach(s, [&](int m, int n, int i, Real& x) {
        if (!tile_mask.Visible(row0 + m * 16 + i / 2 * 8, key0 + n * 8 + lane.t * 2 + i % 2)) x = -Real(INFINITY);
      });
    }
    LeftOperands<T, kKeys> p[kM];
    LeftOperands<T, kKeys> pg[kM];
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = m * 2 + half;
        Real tile_c = 0;
#pragma unroll
        for (int n = 0; n < kScoreTiles; ++n) {
          const Real p_low = tile::Exp2(s[m][n][half * 2] * scale2 - lse2[row]);
          const Real p_high = tile::Exp2(s[m][n][half * 2 + 1] * scale2 - lse2[row]);
          const Real pg_low = p_low * (g[m][n][half * 2] * scale);
          const Real pg_high = p_high * (g[m][n][half * 2 + 1] * scale);
          tile_c += pg_low + pg_high;
          SetLeft<T>(p[m], n, half, p_low, p_high);
          SetLeft<T>(pg[m], n, half, pg_low, pg_high);
        }
        c[row] += tile_c;
      }
    }

    tile::WaitCopies<0>();
    __syncthreads();  // V and tV are there, and every warp is done with K and tK
    if (step + 1 < segment.end) load_k(key0 + kKeys);
    const auto add_values = [&](auto with_g, auto with_tv) {
#pragma unroll
      for (int j = 0; j < kKeys / kStep<T>; ++j) {
#pragma unroll
        for (int n = 0; n < kDim / 8; n += 2) {
          const uint32_t at = v_right + StepRow<T>(j) * kPitch + n * 8 * sizeof(T);
          Operand<T> v;
          Operand<T> tv;
          if constexpr (with_g.value) LoadTransposedRight<T, kPitch>(v, at);
          if constexpr (with_tv.value) LoadTransposedRight<T, kPitch>(tv, at + kToTangentKeys);
#pragma unroll
          for (int m = 0; m < kM; ++m) {
            if constexpr (with_g.value) MultiplyPair<T>(sum[m][n], sum[m][n + 1], pg[m][j], v);
            if constexpr (with_tv.value) MultiplyPair<T>(sum[m][n], sum[m][n + 1], p[m][j], tv);
          }
        }
      }
    };
    WithFlag<true, !kGeneral>(has_tq || has_tk, [&](auto with_g) {
      WithFlag<true, !kGeneral>(has_tv, [&](auto with_tv) { add_values(with_g, with_tv); });
    });
  }

  tile::WaitCopies<0>();
  if (segment.suspends) {
    Real* state = SaveState<kThreads>(StateOf<Real>(args, blockIdx.x, Config::kStateBytes), sum);
#pragma unroll
    for (int i = 0; i < 2 * kM; ++i) state[i * kThreads] = c[i];
    return;
  }

  const Real unshift = exp2(-static_cast<Real>(args.power_shift));
#pragma unroll
  for (int row = 0; row < 2 * kM; ++row) {
    const int32_t query = row0 + row * 8;
    const Real row_c = SumOverRow(c[row]) * unshift;
    const bool inside = query < query_len;
    const auto at_row = [&](const TensorView& view, int32_t probe) {
      return RowOffset(view, probe, batch, item.head, item.sequence.query_start + query);
    };
    Real r = 0;
    Real d = 0;
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
      const int32_t column = n * 8 + lane.t * 2;
      const int32_t left = args.value_dim - column;
      if (!inside || left <= 0) continue;
      const Pair<Real> o = LoadPair<T>(args.o.data, at_row(args.o, 0) + column, left, unaligned, args.o_is_accumulator);
      const Real low = sum[row / 2][n][row % 2 * 2] * unshift - row_c * o.x;
      const Real high = sum[row / 2][n][row % 2 * 2 + 1] * unshift - row_c * o.y;
      if (args.out.data != nullptr) {
        StorePair<T>(args.out.data, at_row(args.out, item.probe) + column, low, high, left, unaligned);
      }
      if (!args.write_row_scalars) continue;
      const Pair<Real> dout = LoadPair<T>(args.dout.data, at_row(args.dout, 0) + column, left, unaligned);
      r += dout.x * low + dout.y * high;
      d += dout.x * o.x + dout.y * o.y;
      if (args.tdo.data != nullptr) {
        const Pair<Real> tdo = LoadPair<T>(args.tdo.data, at_row(args.tdo, item.probe) + column, left, unaligned);
        r += tdo.x * o.x + tdo.y * o.y;
      }
    }
    r = SumOverRow(r);
    d = SumOverRow(d);
    if (lane.t != 0 || !inside) continue;
    if (args.write_row_scalars) {
      RowScalars<Real> scalars;
      scalars.lse = lse[row] * static_cast<Real>(args.lse_factor) - static_cast<Real>(args.lse_shift);
      scalars.d = d;
      scalars.c = row_c;
      scalars.r = r;
      static_cast<RowScalars<Real>*>(args.row_scalars.data)[at_row(args.row_scalars, item.probe)] = scalars;
    }
    if (args.out_lse.data != nullptr) {
      static_cast<Real*>(args.out_lse.data)[at_row(args.out_lse, item.probe)] = row_c;
    }
  }
}

}  // namespace flashbob::cuda::mma

#endif  // FLASHBOB_KERNELS_CUDA_MMA_ROWS_CUH_
