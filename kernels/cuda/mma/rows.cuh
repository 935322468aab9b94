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
// products, the next K and tK under the second. D = 64: 74 KB, D = 128: 104 KB; two CTAs a multiprocessor.
//
// fp16: P and P . G are multiplied by 2^power_shift (P is about 1/N, below fp16's normal range in long rows).
#ifndef FLASHBOB_KERNELS_CUDA_MMA_ROWS_CUH_
#define FLASHBOB_KERNELS_CUDA_MMA_ROWS_CUH_

#include "kernels/cuda/mma/common.cuh"

namespace flashbob::cuda::mma {

template <typename Element, int kHeadDim, int kWarpCount = 4>
struct RowsConfig {
  using T = Element;
  static constexpr int kDim = kHeadDim;
  static constexpr int kWarps = kWarpCount;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kCtasPerSm = 2;
  static constexpr int kQueries = 32 * kWarps;
  static constexpr int kKeys = kDim <= 64 ? 64 : 32;
  static constexpr int kPitch = kDim + kPadding;
  static constexpr size_t kSharedBytes = static_cast<size_t>(2 * kQueries + 4 * kKeys) * kPitch * 2;
  static constexpr size_t kStateBytes = static_cast<size_t>(kThreads) * (kDim + 4) * sizeof(float);
};

template <typename Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kCtasPerSm)
    TangentRows(__grid_constant__ const PassArgs args) {
  using T = typename Config::T;
  constexpr int kDim = Config::kDim;
  constexpr int kThreads = Config::kThreads;
  constexpr int kKeys = Config::kKeys;
  constexpr int kPitch = Config::kPitch;
  constexpr int kScoreTiles = kKeys / 8;
  extern __shared__ __align__(16) unsigned char shared[];
  const uint32_t q_tile = tile::SharedAddress(shared);
  const uint32_t tq_tile = q_tile + Config::kQueries * kPitch * 2;
  const uint32_t k_tile = tq_tile + Config::kQueries * kPitch * 2;
  const uint32_t tk_tile = k_tile + kKeys * kPitch * 2;
  const uint32_t v_tile = tk_tile + kKeys * kPitch * 2;
  const uint32_t tv_tile = v_tile + kKeys * kPitch * 2;

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
  const int32_t row0 = query0 + lane.warp * 32 + lane.g;  // this thread's rows: row0 + 8 i, i = 0..3

  using KeyLoader = TileLoader<kThreads, kKeys, kDim>;
  using QueryLoader = TileLoader<kThreads, Config::kQueries, kDim>;
  const int64_t key_start = item.sequence.key_start;
  const int64_t query_start = item.sequence.query_start;
  const KeyLoader k_loader(args.k, 0, batch, kv_head, key_start, args.head_dim);
  const KeyLoader tk_loader(args.tk, item.probe, batch, kv_head, key_start, args.head_dim);
  const KeyLoader v_loader(args.v, 0, batch, kv_head, key_start, args.value_dim);
  const KeyLoader tv_loader(args.tv, item.probe, batch, kv_head, key_start, args.value_dim);
  QueryLoader(args.q, 0, batch, item.head, query_start, args.head_dim).Load(q_tile, query0, query_len);
  QueryLoader(args.tq, item.probe, batch, item.head, query_start, args.head_dim).Load(tq_tile, query0, query_len);
  const auto load_k = [&](int32_t key) {
    k_loader.Load(k_tile, key, key_len);
    tk_loader.Load(tk_tile, key, key_len);
    tile::CommitCopies();
  };
  if (segment.begin < segment.end) load_k(static_cast<int32_t>(segment.begin) * kKeys);
  tile::CommitCopies();

  Sums<2, kDim / 8> sum;
  float c[4] = {};  // this thread's part, times 2^power_shift
  if (segment.resumes) {
    const float* state = LoadState<kThreads, 2, kDim / 8>(StateOf(args, blockIdx.x, Config::kStateBytes), sum);
#pragma unroll
    for (int i = 0; i < 4; ++i) c[i] = state[i * kThreads];
  } else {
    Clear<2, kDim / 8>(sum);
  }

  const auto scale = static_cast<float>(args.scale);
  const float scale2 = scale * kLog2E;
  float lse[4];  // +inf for a row that sees no key or does not exist, so that P = 0
  float lse2[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int32_t query = row0 + i * 8;
    lse[i] = INFINITY;
    if (query < query_len) {
      const float given = static_cast<const float*>(
          args.lse.data)[RowOffset(args.lse, 0, batch, item.head, item.sequence.query_start + query)];
      if (given != -INFINITY) lse[i] = given;
    }
    lse2[i] = lse[i] * kLog2E - static_cast<float>(args.power_shift);
  }
  const TileMask tile_mask(mask);
  const IndexRange unmasked = KeysOfAll(mask, {query0, min(query0 + Config::kQueries, query_len)});
  const uint32_t q_left = q_tile + PlainOffset<kPitch>(lane) + lane.warp * 32 * kPitch * 2;
  constexpr uint32_t kToTangentQueries = Config::kQueries * kPitch * 2;
  const uint32_t k_right = k_tile + CrossedOffset<kPitch>(lane);
  const uint32_t v_right = v_tile + PlainOffset<kPitch>(lane);
  constexpr uint32_t kToTangentKeys = kKeys * kPitch * 2;

  for (int64_t step = segment.begin; step < segment.end; ++step) {
    const int32_t key0 = static_cast<int32_t>(step) * kKeys;
    tile::WaitCopies<0>();
    __syncthreads();  // K and tK are there, and every warp is done with the last V and tV
    v_loader.Load(v_tile, key0, key_len);
    tv_loader.Load(tv_tile, key0, key_len);
    tile::CommitCopies();

    Sums<2, kScoreTiles> s;
    Sums<2, kScoreTiles> g;
    Clear<2, kScoreTiles>(s);
    Clear<2, kScoreTiles>(g);
#pragma unroll
    for (int d = 0; d < kDim / 16; ++d) {
      uint32_t q[2][4];
      uint32_t tq[2][4];
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        tile::LoadMatrices(q[m], q_left + (m * 16 * kPitch + d * 16) * 2);
        tile::LoadMatrices(tq[m], q_left + kToTangentQueries + (m * 16 * kPitch + d * 16) * 2);
      }
#pragma unroll
      for (int n = 0; n < kScoreTiles; n += 2) {
        uint32_t k[4];
        uint32_t tk[4];
        tile::LoadMatrices(k, k_right + (n * 8 * kPitch + d * 16) * 2);
        tile::LoadMatrices(tk, k_right + kToTangentKeys + (n * 8 * kPitch + d * 16) * 2);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          tile::Multiply<T>(s[m][n], q[m], k[0], k[1]);
          tile::Multiply<T>(s[m][n + 1], q[m], k[2], k[3]);
          tile::Multiply<T>(g[m][n], tq[m], k[0], k[1]);
          tile::Multiply<T>(g[m][n + 1], tq[m], k[2], k[3]);
          tile::Multiply<T>(g[m][n], q[m], tk[0], tk[1]);
          tile::Multiply<T>(g[m][n + 1], q[m], tk[2], tk[3]);
        }
      }
    }

    if (key0 < unmasked.begin || key0 + kKeys > unmasked.end) {
      ForEach<2, kScoreTiles>(s, [&](int m, int n, int i, float& x) {
        if (!tile_mask.Visible(row0 + m * 16 + i / 2 * 8, key0 + n * 8 + lane.t * 2 + i % 2)) x = -INFINITY;
      });
    }
    uint32_t p[2][kScoreTiles / 2][4];
    uint32_t pg[2][kScoreTiles / 2][4];
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = m * 2 + half;
        float tile_c = 0;
#pragma unroll
        for (int n = 0; n < kScoreTiles; ++n) {
          const float p_low = tile::Exp2(s[m][n][half * 2] * scale2 - lse2[row]);
          const float p_high = tile::Exp2(s[m][n][half * 2 + 1] * scale2 - lse2[row]);
          const float pg_low = p_low * (g[m][n][half * 2] * scale);
          const float pg_high = p_high * (g[m][n][half * 2 + 1] * scale);
          tile_c += pg_low + pg_high;
          p[m][n / 2][n % 2 * 2 + half] = tile::Pack<T>(p_low, p_high);
          pg[m][n / 2][n % 2 * 2 + half] = tile::Pack<T>(pg_low, pg_high);
        }
        c[row] += tile_c;
      }
    }

    tile::WaitCopies<0>();
    __syncthreads();  // V and tV are there, and every warp is done with K and tK
    if (step + 1 < segment.end) load_k(key0 + kKeys);
#pragma unroll
    for (int j = 0; j < kScoreTiles / 2; ++j) {
#pragma unroll
      for (int n = 0; n < kDim / 8; n += 2) {
        uint32_t v[4];
        uint32_t tv[4];
        tile::LoadMatricesTransposed(v, v_right + (j * 16 * kPitch + n * 8) * 2);
        tile::LoadMatricesTransposed(tv, v_right + kToTangentKeys + (j * 16 * kPitch + n * 8) * 2);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          tile::Multiply<T>(sum[m][n], pg[m][j], v[0], v[1]);
          tile::Multiply<T>(sum[m][n + 1], pg[m][j], v[2], v[3]);
          tile::Multiply<T>(sum[m][n], p[m][j], tv[0], tv[1]);
          tile::Multiply<T>(sum[m][n + 1], p[m][j], tv[2], tv[3]);
        }
      }
    }
  }

  tile::WaitCopies<0>();
  if (segment.suspends) {
    float* state = SaveState<kThreads, 2, kDim / 8>(StateOf(args, blockIdx.x, Config::kStateBytes), sum);
#pragma unroll
    for (int i = 0; i < 4; ++i) state[i * kThreads] = c[i];
    return;
  }

  const float unshift = exp2f(-static_cast<float>(args.power_shift));
#pragma unroll
  for (int row = 0; row < 4; ++row) {
    const int32_t query = row0 + row * 8;
    const float row_c = SumOverRow(c[row]) * unshift;
    const bool inside = query < query_len;
    const auto at_row = [&](const TensorView& view, int32_t probe) {
      return RowOffset(view, probe, batch, item.head, item.sequence.query_start + query);
    };
    float r = 0;
    float d = 0;
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
      const int32_t column = n * 8 + lane.t * 2;
      if (!inside || column >= args.value_dim) continue;
      const float2 o = LoadPair<T>(args.o.data, at_row(args.o, 0) + column, args.o_is_accumulator);
      const float low = sum[row / 2][n][row % 2 * 2] * unshift - row_c * o.x;
      const float high = sum[row / 2][n][row % 2 * 2 + 1] * unshift - row_c * o.y;
      if (args.out.data != nullptr) {
        StorePair<T>(args.out.data, at_row(args.out, item.probe) + column, low, high);
      }
      if (!args.write_row_scalars) continue;
      const float2 dout = LoadPair<T>(args.dout.data, at_row(args.dout, 0) + column);
      r += dout.x * low + dout.y * high;
      d += dout.x * o.x + dout.y * o.y;
      if (args.tdo.data != nullptr) {
        const float2 tdo = LoadPair<T>(args.tdo.data, at_row(args.tdo, item.probe) + column);
        r += tdo.x * o.x + tdo.y * o.y;
      }
    }
    r = SumOverRow(r);
    d = SumOverRow(d);
    if (lane.t != 0 || !inside) continue;
    if (args.write_row_scalars) {
      RowScalars<float> scalars;
      scalars.lse = lse[row] * static_cast<float>(args.lse_factor) - static_cast<float>(args.lse_shift);
      scalars.d = d;
      scalars.c = row_c;
      scalars.r = r;
      static_cast<RowScalars<float>*>(args.row_scalars.data)[at_row(args.row_scalars, item.probe)] = scalars;
    }
    if (args.out_lse.data != nullptr) {
      static_cast<float*>(args.out_lse.data)[at_row(args.out_lse, item.probe)] = row_c;
    }
  }
}

}  // namespace flashbob::cuda::mma

#endif  // FLASHBOB_KERNELS_CUDA_MMA_ROWS_CUH_
