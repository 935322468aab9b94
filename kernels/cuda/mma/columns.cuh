// Column pass on tensor cores: backward (5 products), pass 2 of BoB (10) and the tangents of the gradients (12).
//
//     dP = dO V^T          H = dO tV^T + tdO V^T
//     Z = P . (dP - D)     X = P . (G - c)      Y = Z . (G - c) + P . (H - r)
//     gV = X^T dO + P^T tdO      gK = tau (Y^T Q + Z^T tQ)      gQ = tau (Y K + Z tK)
//
// Terms says which of tQ, tK, tV, tdO there are; without tQ and tK there is no G, dP, X and Z. Backward is the case of
// tdO := dO alone, with r = D: H = dO V^T, Y = P . (H - D), gV = P^T dO, gK = tau Y^T Q, gQ = tau Y K.
//
// A CTA owns kKeys keys of one kv head and streams tiles of kQueries queries of every head that shares it; a warp has
// 16 kTilesM keys. Scores are transposed (rows = keys), so that X, Y, Z, packed to 16 bits, are left operands of gV and
// gK (16 kTilesM x D a warp, registers) as they are. Y and Z also go to shared memory, [key][query], for gQ: a warp
// computes pieces of Y K + Z tK over all keys of the CTA and adds them to the fp32 sum in global memory, which lies in
// the order of fragments (FragmentSums).
// Where gV and gK of 32 keys do not fit a warp (D = 128), kSplit warps share 16 kTilesM keys: each takes its part of
// the queries for the scores and its part of the columns for gV and gK, and X passes through shared memory too. Per
// tile: scores, gV and gK, gQ; the next tile of queries arrives meanwhile, in a second buffer (kStages = 2) or, once gV
// and gK are done with the first, under the products of gQ. README.md has the table of tile sizes, shared memory and
// registers.
//
// The general kernel has room for all terms and computes those that there are.
//
// fp16: P, X, Y and Z are multiplied by 2^power_shift (P is about 1/N, below fp16's normal range in long rows).
#ifndef FLASHBOB_KERNELS_CUDA_MMA_COLUMNS_CUH_
#define FLASHBOB_KERNELS_CUDA_MMA_COLUMNS_CUH_

#include "kernels/cuda/mma/column_tiles.cuh"
#include "kernels/cuda/turn.cuh"

namespace flashbob::cuda::mma {

template <typename Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kCtasPerSm) Columns(__grid_constant__ const PassArgs args) {
  using T = typename Config::T;
  using Real = RealOf<T>;
  using Term = typename Config::Term;
  constexpr int kDim = Config::kDim;
  constexpr int kThreads = Config::kThreads;
  constexpr int kM = Config::kTilesM;
  constexpr int kQueries = Config::kQueries;
  constexpr int kPitch = Config::kPitch;
  constexpr int kScorePitch = Config::kScorePitch;
  constexpr int kTiles = kQueries / Config::kSplit / 8;    // fragments across a warp's scores
  constexpr int kColumnTiles = kDim / Config::kSplit / 8;  // and across its gV and gK
  constexpr bool kGeneral = Config::kGeneral;
  constexpr int kSize = sizeof(T);
  extern __shared__ __align__(128) unsigned char shared[];
  const uint32_t base = tile::SharedAddress(shared);

  int64_t slot;
  const Item item = ItemAt<Side::kKey>(args, TakeItem(args, &slot), Config::kKeys);
  const BandMask& mask = item.sequence.mask;
  const int32_t batch = item.sequence.index;
  const auto query_len = static_cast<int32_t>(mask.query_len);
  const auto key_len = static_cast<int32_t>(mask.key_len);
  const int32_t tiles_per_head = (query_len + kQueries - 1) / kQueries;
  const int32_t group = args.heads / args.kv_heads;
  const TileRange tiles = QueryTiles(mask, item.block, Config::kKeys, kQueries);
  const Segment segment = SegmentOf(args, ColumnWalk(tiles, tiles_per_head, group));
  if (!segment.active) return;
  const int32_t key0 = item.block * Config::kKeys;
  const Lane lane;
  const bool has_tq = Term::kTq && (!kGeneral || args.tq.data != nullptr);
  const bool has_tk = Term::kTk && (!kGeneral || args.tk.data != nullptr);
  const bool has_tv = Term::kTv && (!kGeneral || args.tv.data != nullptr);
  const bool has_tdo = Term::kTdo && (!kGeneral || args.tdo.data != nullptr);
  const bool has_g = has_tq || has_tk;
  const bool has_do = has_g || has_tv;
  const int alignment = kGeneral ? args.row_alignment : 16;
  const bool unaligned = alignment < 16;

  const int64_t query_start = item.sequence.query_start;
  const auto load_keys = [&](uint32_t to, const TensorView& view, int32_t probe, int32_t columns) {
    TileLoader<T, kThreads, Config::kKeys, kDim, kGeneral>(view, probe, batch, item.head, item.sequence.key_start,
                                                           columns)
        .Load(base + to, key0, key_len, alignment);
  };
  load_keys(Config::kK, args.k, 0, args.head_dim);
  if (has_g || has_tdo) load_keys(Config::kV, args.v, 0, args.value_dim);
  if (has_tk) load_keys(Config::kTk, args.tk, item.probe, args.head_dim);
  if (has_tv) load_keys(Config::kTv, args.tv, item.probe, args.value_dim);
  tile::CommitCopies();

  // A deterministic pass keeps the order of tiles.
  ColumnCursor<kQueries> cursor(segment, tiles, tiles_per_head, item.head * group, group,
                                args.turn == nullptr ? item.block * (Config::kKeys / 16) / (kQueries / 16) : 0);
  // What streams, of the head where the cursor is.
  using QueryLoader = TileLoader<T, kThreads, kQueries, kDim, kGeneral>;
  QueryLoader q_loader;
  QueryLoader do_loader;
  QueryLoader tq_loader;
  QueryLoader tdo_loader;
  const Real* scalar_source = nullptr;  // this thread's of the head's first row
  int32_t loaded_head = -1;
  const auto load_queries = [&](uint32_t stage) {
    if (cursor.head != loaded_head) {
      loaded_head = cursor.head;
      q_loader = QueryLoader(args.q, 0, batch, loaded_head, query_start, args.head_dim);
      if constexpr (Term::kDo) do_loader = QueryLoader(args.dout, 0, batch, loaded_head, query_start, args.value_dim);
      if constexpr (Term::kTq) {
        tq_loader = QueryLoader(args.tq, item.probe, batch, loaded_head, query_start, args.head_dim);
      }
      if constexpr (Term::kTdo) {
        tdo_loader = QueryLoader(args.tdo, item.probe, batch, loaded_head, query_start, args.value_dim);
      }
      scalar_source = static_cast<const Real*>(args.row_scalars.data) +
                      4 * RowOffset(args.row_scalars, item.probe, batch, loaded_head, query_start) + threadIdx.x;
    }
    q_loader.Load(base + stage + Config::kQ, cursor.query0, query_len, alignment);
    if (has_do) do_loader.Load(base + stage + Config::kDo, cursor.query0, query_len, alignment);
    if (has_tq) tq_loader.Load(base + stage + Config::kTq, cursor.query0, query_len, alignment);
    if (has_tdo) tdo_loader.Load(base + stage + Config::kTdo, cursor.query0, query_len, alignment);
#pragma unroll
    for (int first = 0; first < 4 * kQueries; first += kThreads) {
      const int row = (first + static_cast<int>(threadIdx.x)) / 4;
      const int which = static_cast<int>(threadIdx.x) % 4;
      if (row >= kQueries) break;
      const int to = which * kQueries + row;
      if (cursor.query0 + row < query_len) {
        const uint32_t there = base + stage + Config::kScalars + to * static_cast<int>(sizeof(Real));
        const Real* const from = scalar_source + cursor.query0 * 4 + first;
        if constexpr (kIsDouble<T>) {
          tile::CopyAsync8(there, from);
        } else {
          tile::CopyAsync4(there, from);
        }
      } else {
        reinterpret_cast<Real*>(shared + stage + Config::kScalars)[to] =
            which == 0 ? Real(INFINITY) : Real(0);  // P = 0 in rows past the end
      }
    }
    tile::CommitCopies();
  };
  if (!cursor.done()) load_queries(0);

  Sums<Real, kM, kColumnTiles> gk;
  Sums<Real, kM, kColumnTiles> gv;
  if (segment.resumes) {
    Real* const state = LoadState<kThreads>(StateOf<Real>(args, slot, Config::kStateBytes), gk);
    LoadState<kThreads>(state, gv);
  } else {
    Clear(gk);
    Clear(gv);
  }

  const auto scale = static_cast<Real>(args.scale);
  const Real scale2 = scale * kLog2E<Real>;
  const TileMask tile_mask(mask);
  // Keys past the end have garbage P: their block is masked in every tile. Queries past the end have P = 0 anyway.
  IndexRange unmasked;
  if (key0 + Config::kKeys <= key_len) unmasked = QueriesOfAll(mask, {key0, key0 + Config::kKeys});
  if (unmasked.end == query_len) unmasked.end = static_cast<int64_t>(tiles_per_head) * kQueries;

  const int warp_row = lane.warp / Config::kSplit * 16 * kM;  // of keys
  const int part = lane.warp % Config::kSplit;
  const int warp_query = part * kTiles * 8;         // of scores
  const int warp_column = part * kColumnTiles * 8;  // of gV and gK
  const uint32_t key_left = base + PlainOffset<T, kPitch>(lane) + warp_row * kPitch;
  const uint32_t key_right = base + TransposedRightOffset<T, kPitch>(lane);
  const uint32_t score_store = base + (warp_row + lane.g) * kScorePitch + (warp_query + lane.t * 2) * kSize;
  const uint32_t score_left = base + PlainOffset<T, kScorePitch>(lane) + warp_row * kScorePitch;  // of gV and gK
  const uint32_t score_left_transposed = base + TransposedLeftOffset<T, kScorePitch>(lane);       // of gQ
  const int32_t my_key = key0 + warp_row + lane.g;
  // This lane's place in the sums of gQ, of the sequence's first head.
  const FragmentSums<Real> gq_sums(args, item, mask.query_len);
  Real* const gq_lane = gq_sums.Head(0) + lane.lane * 4;
  uint32_t stage = 0;

  while (!cursor.done()) {
    tile::WaitCopies<0>();
    __syncthreads();  // this tile is there, and every warp is done with the last Y and Z
    const int32_t head = cursor.head;
    const int32_t query0 = cursor.query0;
    const uint32_t query_right = base + stage + CrossedOffset<T, kPitch>(lane) + warp_query * kPitch;
    const uint32_t transposed_right = base + stage + TransposedRightOffset<T, kPitch>(lane) + warp_column * kSize;
    const Real* const scalars = reinterpret_cast<const Real*>(shared + stage + Config::kScalars) + warp_query;
    const auto load_next = [&] {
      cursor.Next();
      if constexpr (Config::kStages == 2) stage ^= Config::kStageBytes;
      if (!cursor.done()) load_queries(stage);
    };
    if constexpr (Config::kStages == 2) load_next();

    // S and G, which share Q.
    Sums<Real, kM, kTiles> s;
    Sums<Real, Term::kG ? kM : 1, Term::kG ? kTiles : 1> g;
    Clear(s);
    if constexpr (Term::kG) Clear(g);
    const auto add_scores = [&](auto with_tq, auto with_tk) {
#pragma unroll
      for (int d = 0; d < kDim / kStep<T>; ++d) {
        Operand<T> k[kM];
        Operand<T> tk[kM];
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          LoadOperand<T, kPitch>(k[m], key_left + Config::kK + m * 16 * kPitch + d * 32);
          if constexpr (with_tk.value) LoadOperand<T, kPitch>(tk[m], key_left + Config::kTk + m * 16 * kPitch + d * 32);
        }
#pragma unroll
        for (int n = 0; n < kTiles; n += 2) {
          Operand<T> q;
          LoadOperand<T, kPitch>(q, query_right + Config::kQ + n * 8 * kPitch + d * 32);
#pragma unroll
          for (int m = 0; m < kM; ++m) MultiplyPair<T>(s[m][n], s[m][n + 1], k[m], q);
          if constexpr (with_tk.value) {
#pragma unroll
            for (int m = 0; m < kM; ++m) MultiplyPair<T>(g[m][n], g[m][n + 1], tk[m], q);
          }
          if constexpr (with_tq.value) {
            Operand<T> tq;
            LoadOperand<T, kPitch>(tq, query_right + Config::kTq + n * 8 * kPitch + d * 32);
#pragma unroll
            for (int m = 0; m < kM; ++m) MultiplyPair<T>(g[m][n], g[m][n + 1], k[m], tq);
          }
        }
      }
    };
    WithFlag<Term::kTq, Term::kTq && !kGeneral>(has_tq, [&](auto with_tq) {
      WithFlag<Term::kTk, Term::kTk && !kGeneral>(has_tk, [&](auto with_tk) { add_scores(with_tq, with_tk); });
    });

    // dP and H, which share dO. Their sums begin at -D and -r.
    Sums<Real, kM, kTiles> h;
    Sums<Real, Term::kG ? kM : 1, Term::kG ? kTiles : 1> dp;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const Pair<Real> r = *reinterpret_cast<const Pair<Real>*>(scalars + 3 * kQueries + n * 8 + lane.t * 2);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        h[m][n][0] = h[m][n][2] = -r.x;
        h[m][n][1] = h[m][n][3] = -r.y;
      }
      if constexpr (Term::kG) {
        const Pair<Real> d = *reinterpret_cast<const Pair<Real>*>(scalars + kQueries + n * 8 + lane.t * 2);
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          dp[m][n][0] = dp[m][n][2] = -d.x;
          dp[m][n][1] = dp[m][n][3] = -d.y;
        }
      }
    }
    const auto add_value_scores = [&](auto with_g, auto with_tv, auto with_tdo) {
#pragma unroll
      for (int d = 0; d < kDim / kStep<T>; ++d) {
        Operand<T> v[kM];
        Operand<T> tv[kM];
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          if constexpr (with_g.value || with_tdo.value) {
            LoadOperand<T, kPitch>(v[m], key_left + Config::kV + m * 16 * kPitch + d * 32);
          }
          if constexpr (with_tv.value) LoadOperand<T, kPitch>(tv[m], key_left + Config::kTv + m * 16 * kPitch + d * 32);
        }
#pragma unroll
        for (int n = 0; n < kTiles; n += 2) {
          if constexpr (with_g.value || with_tv.value) {
            Operand<T> dout;
            LoadOperand<T, kPitch>(dout, query_right + Config::kDo + n * 8 * kPitch + d * 32);
            if constexpr (with_g.value) {
#pragma unroll
              for (int m = 0; m < kM; ++m) MultiplyPair<T>(dp[m][n], dp[m][n + 1], v[m], dout);
            }
            if constexpr (with_tv.value) {
#pragma unroll
              for (int m = 0; m < kM; ++m) MultiplyPair<T>(h[m][n], h[m][n + 1], tv[m], dout);
            }
          }
          if constexpr (with_tdo.value) {
            Operand<T> tdo;
            LoadOperand<T, kPitch>(tdo, query_right + Config::kTdo + n * 8 * kPitch + d * 32);
#pragma unroll
            for (int m = 0; m < kM; ++m) MultiplyPair<T>(h[m][n], h[m][n + 1], v[m], tdo);
          }
        }
      }
    };
    if constexpr (kGeneral) {
      // dO's products, then tdO's: what they share, V, is not worth a loop for every set of the three.
      WithFlag<true, false>(has_g, [&](auto with_g) {
        WithFlag<true, false>(has_tv, [&](auto with_tv) {
          if (with_g.value || with_tv.value) add_value_scores(with_g, with_tv, std::false_type{});
        });
      });
      if (has_tdo) add_value_scores(std::false_type{}, std::false_type{}, std::true_type{});
    } else {
      add_value_scores(std::bool_constant<Term::kG>{}, std::bool_constant<Term::kTv>{},
                       std::bool_constant<Term::kTdo>{});
    }

    if (query0 < unmasked.begin || query0 + kQueries > unmasked.end) {
      ForEach(s, [&](int m, int n, int i, Real& element) {
        if (!tile_mask.Visible(query0 + warp_query + n * 8 + lane.t * 2 + i % 2, my_key + m * 16 + i / 2 * 8)) {
          element = -Real(INFINITY);
        }
      });
    }

    // Left operands: P and X of gV, Y and Z of gK; Y and Z also to shared memory.
    using Operands = LeftOperands<T, kTiles * 8>;
    Operands p[kM];
    Operands x[kM];
    Operands y[kM];
    Operands z[kM];
    const auto make_operands = [&](auto with_g) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const Pair<Real> lse = *reinterpret_cast<const Pair<Real>*>(scalars + n * 8 + lane.t * 2);
        Pair<Real> c;
        if constexpr (with_g.value)
          c = *reinterpret_cast<const Pair<Real>*>(scalars + 2 * kQueries + n * 8 + lane.t * 2);
#pragma unroll
        for (int m = 0; m < kM; ++m) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const Real p0 = tile::Exp2(s[m][n][half * 2] * scale2 - lse.x);
            const Real p1 = tile::Exp2(s[m][n][half * 2 + 1] * scale2 - lse.y);
            const uint32_t to = score_store + (m * 16 + half * 8) * kScorePitch + n * 8 * kSize;
            Real y0 = p0 * h[m][n][half * 2];
            Real y1 = p1 * h[m][n][half * 2 + 1];
            if constexpr (Term::kTdo) {
              SetLeft<T>(p[m], n, half, p0, p1);
              if constexpr (Config::kSharedX) StoreLeft<T>(to + Config::kP, p[m], n, half);
            }
            if constexpr (with_g.value) {
              const Real g0 = g[m][n][half * 2] * scale - c.x;
              const Real g1 = g[m][n][half * 2 + 1] * scale - c.y;
              const Real z0 = p0 * dp[m][n][half * 2];
              const Real z1 = p1 * dp[m][n][half * 2 + 1];
              y0 += z0 * g0;
              y1 += z1 * g1;
              SetLeft<T>(x[m], n, half, p0 * g0, p1 * g1);
              SetLeft<T>(z[m], n, half, z0, z1);
              if constexpr (Config::kX > Config::kZ) StoreLeft<T>(to + Config::kZ, z[m], n, half);
              if constexpr (Config::kSharedX) StoreLeft<T>(to + Config::kX, x[m], n, half);
            }
            SetLeft<T>(y[m], n, half, y0, y1);
            StoreLeft<T>(to + Config::kY, y[m], n, half);
          }
        }
      }
    };
    WithFlag<Term::kG, Term::kG && !kGeneral>(has_g, make_operands);

    if constexpr (Config::kSharedX) __syncthreads();  // P, X, Y and Z are there
    // sum += left^T right over the queries of step j: the left operand is this warp's own fragments, or all warps' from
    // shared memory.
    const auto add = [&](Sums<Real, kM, kColumnTiles>& sum, const Operands(&own)[kM], uint32_t shared_tile,
                         uint32_t right_tile, int j) {
      Operand<T> left[kM];
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        if constexpr (Config::kSharedX) {
          LoadOperand<T, kPitch>(left[m], score_left + shared_tile + m * 16 * kScorePitch + j * 32);
        } else {
#pragma unroll
          for (int i = 0; i < static_cast<int>(std::extent_v<Operand<T>>); ++i) left[m][i] = own[m][j][i];
        }
      }
#pragma unroll
      for (int n = 0; n < kColumnTiles; n += 2) {
        Operand<T> right;
        LoadTransposedRight<T, kPitch>(right, transposed_right + right_tile + StepRow<T>(j) * kPitch + n * 8 * kSize);
#pragma unroll
        for (int m = 0; m < kM; ++m) MultiplyPair<T>(sum[m][n], sum[m][n + 1], left[m], right);
      }
    };
    constexpr int kSteps = kQueries / kStep<T>;
    if constexpr (kGeneral) {
      if (has_g) {
#pragma unroll
        for (int j = 0; j < kSteps; ++j) add(gv, x, Config::kX, Config::kDo, j);
      }
      if (has_tdo) {
#pragma unroll
        for (int j = 0; j < kSteps; ++j) add(gv, p, Config::kP, Config::kTdo, j);
      }
#pragma unroll
      for (int j = 0; j < kSteps; ++j) add(gk, y, Config::kY, Config::kQ, j);
      if (has_tq) {
#pragma unroll
        for (int j = 0; j < kSteps; ++j) add(gk, z, Config::kZ, Config::kTq, j);
      }
    } else {
#pragma unroll
      for (int j = 0; j < kSteps; ++j) {
        if constexpr (Term::kG) add(gv, x, Config::kX, Config::kDo, j);
        if constexpr (Term::kTdo) add(gv, p, Config::kP, Config::kTdo, j);
        add(gk, y, Config::kY, Config::kQ, j);
        if constexpr (Term::kTq) add(gk, z, Config::kZ, Config::kTq, j);
      }
    }
    if constexpr (!Config::kSharedX || Config::kStages == 1) {
      __syncthreads();  // Y and Z are there, and every warp is done with this tile
    }
    if constexpr (Config::kStages == 1) load_next();
    if (args.gq_sum.data == nullptr) continue;

    int32_t* turn = nullptr;
    if (args.turn != nullptr) {
      const int64_t tile_index = query0 / kQueries;
      const int64_t first_tile = args.sequences == nullptr ? static_cast<int64_t>(batch) * tiles_per_head
                                                           : batch + item.sequence.query_start / kQueries;
      turn = args.turn + (static_cast<int64_t>(item.probe) * args.heads + head) * args.turn_tiles + first_tile +
             tile_index;
      const TileRange previous =
          item.block == 0 ? TileRange{} : QueryTiles(mask, item.block - 1, Config::kKeys, kQueries);
      AwaitTurn(turn, item.block, tile_index >= previous.begin && tile_index < previous.end);
    }
    Real* const to = gq_lane + (gq_sums.head_stride * head + gq_sums.RowBlock(query0 / 16));
    constexpr int kPieceM = Config::kPieceM / 16;
    constexpr int kPieceN = Config::kPieceN / 8;
    constexpr int kPieces = kQueries / Config::kPieceM * (kDim / Config::kPieceN);
    static_assert(kPieces % Config::kWarps == 0);
#pragma unroll
    for (int round = 0; round < kPieces / Config::kWarps; ++round) {
      const int piece = round * Config::kWarps + lane.warp;
      const int row = piece / (kDim / Config::kPieceN) * Config::kPieceM;
      const int column = piece % (kDim / Config::kPieceN) * Config::kPieceN;
      Sums<Real, kPieceM, kPieceN> gq;
      Clear(gq);
      const auto add_gq = [&](auto with_tk) {
#pragma unroll
        for (int j = 0; j < Config::kKeys / kStep<T>; ++j) {
#pragma unroll
          for (int term = 0; term < (with_tk.value ? 2 : 1); ++term) {
            const uint32_t left_at = score_left_transposed + (term == 0 ? Config::kY : Config::kZ) +
                                     StepRow<T>(j) * kScorePitch + row * kSize;
            const uint32_t right_at =
                key_right + (term == 0 ? Config::kK : Config::kTk) + StepRow<T>(j) * kPitch + column * kSize;
            Operand<T> left[kPieceM];
#pragma unroll
            for (int m = 0; m < kPieceM; ++m) LoadTransposedLeft<T, kScorePitch>(left[m], left_at + m * 16 * kSize);
#pragma unroll
            for (int n = 0; n < kPieceN; n += 2) {
              Operand<T> right;
              LoadTransposedRight<T, kPitch>(right, right_at + n * 8 * kSize);
#pragma unroll
              for (int m = 0; m < kPieceM; ++m) MultiplyPair<T>(gq[m][n], gq[m][n + 1], left[m], right);
            }
          }
        }
      };
      WithFlag<Term::kTk, Term::kTk && !kGeneral>(has_tk, add_gq);
      // Rows past the end add zeros where their block of 16 exists.
      const bool inside = query0 + kQueries <= query_len && args.head_dim == kDim;
#pragma unroll
      for (int m = 0; m < kPieceM; ++m) {
        Real* const to_row = to + gq_sums.RowBlock(row / 16 + m) + column / 8 * kFragmentElements;
#pragma unroll
        for (int n = 0; n < kPieceN; ++n) {
          if (inside || (query0 + row + m * 16 < query_len && column + n * 8 < args.head_dim)) {
            tile::Reduce4(to_row + n * kFragmentElements, gq[m][n]);
          }
        }
      }
    }
    if (turn != nullptr) PassTurn(turn, item.block);
  }

  tile::WaitCopies<0>();
  if (segment.suspends) {
    Real* const state = SaveState<kThreads>(StateOf<Real>(args, slot, Config::kStateBytes), gk);
    SaveState<kThreads>(state, gv);
    return;
  }
  const Real unshift = exp2(-static_cast<Real>(args.power_shift));
#pragma unroll
  for (int row = 0; row < 2 * kM; ++row) {
    const int32_t key = my_key + row * 8;
    if (key >= key_len) continue;
    const int half = row % 2 * 2;
    const auto at_row = [&](const TensorView& view) {
      return RowOffset(view, item.probe, batch, item.head, item.sequence.key_start + key);
    };
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
      const int32_t column = warp_column + n * 8 + lane.t * 2;
      const Real(&k_sum)[4] = gk[row / 2][n];
      const Real(&v_sum)[4] = gv[row / 2][n];
      if (args.gk.data != nullptr && column < args.head_dim) {
        StorePair<T>(args.gk.data, at_row(args.gk) + column, k_sum[half] * unshift * scale,
                     k_sum[half + 1] * unshift * scale, args.head_dim - column, unaligned);
      }
      if (args.gv.data != nullptr && column < args.value_dim) {
        StorePair<T>(args.gv.data, at_row(args.gv) + column, v_sum[half] * unshift, v_sum[half + 1] * unshift,
                     args.value_dim - column, unaligned);
      }
    }
  }
}

}  // namespace flashbob::cuda::mma

#endif  // FLASHBOB_KERNELS_CUDA_MMA_COLUMNS_CUH_
