// Column pass, plain: backward, pass 2 of BoB, and the JVP of the gradients. One CTA owns kOwned keys of one kv head
// and streams the queries of every head that shares it; gK and gV stay in registers, gQ is added to a sum in global
// memory.
//
//     dP = dO V^T          H = dO tV^T + tdO V^T
//     Z = P . (dP - D)     X = P . (G - c)      Y = Z . (G - c) + P . (H - r)
//     gV = X^T dO + P^T tdO      gK = tau (Y^T Q + Z^T tQ)      gQ = tau (Y K + Z tK)
//
// Backward is the case of no tangent but tdO := dO: G = c = 0, r = D.
#ifndef FLASHBOB_KERNELS_CUDA_SIMT_COLUMNS_CUH_
#define FLASHBOB_KERNELS_CUDA_SIMT_COLUMNS_CUH_

#include "kernels/cuda/simt/block.cuh"
#include "kernels/cuda/turn.cuh"

namespace flashbob::cuda::simt {

template <typename Real>
inline constexpr size_t kColumnsStateBytes = 2 * kAccumulatorBytes<Real>;

// gQ rows of a streamed tile: left_a[s][.] right_a + left_b[s][.] right_b, added to `to` in global memory.
template <typename T, typename Real>
__device__ inline void AddToQueries(Real* to, int64_t pitch, int rows, int columns, Shared<Real>& shared,
                                    const Term<T>& a, const Term<T>& b) {
  using Sizes = Tile<Real>;
  const int tx = threadIdx.x % 16;
  const int ty = threadIdx.x / 16;
  for (int first = 0; first < columns; first += Sizes::kColumns) {
    Real tile[Sizes::kRows][Sizes::kVector] = {};
#pragma unroll 1
    for (int index = 0; index < 2; ++index) {
      const Term<T>& term = index == 0 ? a : b;
      if (term.right.data == nullptr) continue;
      __syncthreads();
      LoadRight<T, Real>(shared, Sizes::kOwned, term.right, first);
      __syncthreads();
#pragma unroll 8
      for (int o = 0; o < Sizes::kOwned; ++o) {
        Real right[Sizes::kVector];
        LoadVector(right, &shared.right[o][tx * Sizes::kVector]);
#pragma unroll
        for (int i = 0; i < Sizes::kRows; ++i) {
          const Real left = shared.left[term.left][ty + 16 * i][o];
#pragma unroll
          for (int j = 0; j < Sizes::kVector; ++j) tile[i][j] = fma(left, right[j], tile[i][j]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < Sizes::kRows; ++i) {
      const int row = ty + 16 * i;
#pragma unroll
      for (int j = 0; j < Sizes::kVector; ++j) {
        const int column = first + tx * Sizes::kVector + j;
        if (row < rows && column < columns) atomicAdd(to + row * pitch + column, tile[i][j]);
      }
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads, 1) Columns(__grid_constant__ const PassArgs args) {
  using Real = typename RealOf<T>::Type;
  using Sizes = Tile<Real>;
  constexpr int kVector = Sizes::kVector;
  __shared__ Shared<Real> shared;

  int64_t slot;
  const Item item = ItemAt<Side::kKey>(args, TakeItem(args, &slot), Sizes::kOwned);
  const Sequence& sequence = item.sequence;
  const BandMask& mask = sequence.mask;
  const int64_t tiles_per_head = (mask.query_len + Sizes::kStreamed - 1) / Sizes::kStreamed;
  const int32_t group = args.heads / args.kv_heads;
  const TileRange tiles = QueryTiles(mask, item.block, Sizes::kOwned, Sizes::kStreamed);
  const TileRange previous =
      item.block == 0 ? TileRange{} : QueryTiles(mask, item.block - 1, Sizes::kOwned, Sizes::kStreamed);
  const Segment segment = SegmentOf(args, ColumnWalk(tiles, tiles_per_head, group));
  if (!segment.active) return;

  const int tx = threadIdx.x % 16;
  const int ty = threadIdx.x / 16;
  const int64_t key0 = static_cast<int64_t>(item.block) * Sizes::kOwned;
  const Real scale = static_cast<Real>(args.scale);
  const bool has_g = args.tq.data != nullptr || args.tk.data != nullptr;
  const auto key_rows = [&](const TensorView& view, int32_t probe, int32_t columns) {
    return RowsOf<T>(view, probe, sequence.index, item.head, sequence.key_start, key0, mask.key_len, columns);
  };
  const Rows<T> k = key_rows(args.k, 0, args.head_dim);
  const Rows<T> v = key_rows(args.v, 0, args.value_dim);
  const Rows<T> tk = key_rows(args.tk, item.probe, args.head_dim);
  const Rows<T> tv = key_rows(args.tv, item.probe, args.value_dim);

  Accumulator<Real> gk;
  Accumulator<Real> gv;
  Real* state = reinterpret_cast<Real*>(static_cast<char*>(args.state) + slot * kColumnsStateBytes<Real>) + threadIdx.x;
  if (segment.resumes) {
    LoadState<Real>(LoadState<Real>(state, gk), gv);
  } else {
    gk.Clear();
    gv.Clear();
  }

  for (int64_t step = segment.begin; step < segment.end; ++step) {
    const int64_t tile = step % tiles_per_head;
    if (tile < tiles.begin || tile >= tiles.end) continue;
    const int32_t head = item.head * group + static_cast<int32_t>(step / tiles_per_head);
    const int64_t query0 = tile * Sizes::kStreamed;
    const auto query_rows = [&](const TensorView& view, int32_t probe, int32_t columns) {
      return RowsOf<T>(view, probe, sequence.index, head, sequence.query_start, query0, mask.query_len, columns);
    };
    const Rows<T> q = query_rows(args.q, 0, args.head_dim);
    const Rows<T> tq = query_rows(args.tq, item.probe, args.head_dim);
    const Rows<T> dout = query_rows(args.dout, 0, args.value_dim);
    const Rows<T> tdo = query_rows(args.tdo, item.probe, args.value_dim);
    Real p[Sizes::kRows][kVector] = {};
    Real z[Sizes::kRows][kVector] = {};  // dP, then Z
    Real g[Sizes::kRows][kVector] = {};
    Real y[Sizes::kRows][kVector] = {};  // H, then Y
    AddScores<T, Real>(p, shared, q, k);
    AddScores<T, Real>(g, shared, tq, k);
    AddScores<T, Real>(g, shared, q, tk);
    if (has_g) AddScores<T, Real>(z, shared, dout, v);
    AddScores<T, Real>(y, shared, dout, tv);
    AddScores<T, Real>(y, shared, tdo, v);
#pragma unroll
    for (int i = 0; i < Sizes::kRows; ++i) {
      const int64_t query = query0 + ty + 16 * i;
      RowScalars<Real> row = {Infinity<Real>(), 0, 0, 0};
      if (query < mask.query_len) {
        row = static_cast<const RowScalars<Real>*>(args.row_scalars.data)[RowOffset(
            args.row_scalars, item.probe, sequence.index, head, sequence.query_start + query)];
      }
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        const int64_t key = key0 + tx * kVector + j;
        const bool visible = key < mask.key_len && mask.Visible(query, key);
        const Real p_ij = visible ? Exp(p[i][j] * scale - row.lse) : Real(0);
        const Real centred = g[i][j] * scale - row.c;
        const Real z_ij = has_g ? p_ij * (z[i][j] - row.d) : Real(0);
        p[i][j] = p_ij;
        z[i][j] = z_ij;
        g[i][j] = has_g ? p_ij * centred : Real(0);
        y[i][j] = z_ij * (has_g ? centred : Real(0)) + p_ij * (y[i][j] - row.r);
      }
    }
    // gV, with X and P as left operands; then gK and gQ with Y and Z.
    __syncthreads();
    StoreLeft(shared.left[0], g);
    StoreLeft(shared.left[1], p);
    if (args.gv.data != nullptr) {
      AddProducts<T, Real>(gv, shared, {0, has_g ? dout : Rows<T>{}}, {1, tdo});
    }
    __syncthreads();
    StoreLeft(shared.left[1], y);
    StoreLeft(shared.left[2], z);
    if (args.gk.data != nullptr) AddProducts<T, Real>(gk, shared, {1, q}, {2, tq});
    __syncthreads();
    if (args.gq_sum.data != nullptr) {
      int32_t* turn = nullptr;
      if (args.turn != nullptr) {
        const int64_t row_tile = (sequence.index * (args.sequences == nullptr ? tiles_per_head : 1)) +
                                 sequence.query_start / Sizes::kStreamed + tile;
        turn = args.turn + (static_cast<int64_t>(item.probe) * args.heads + head) * args.turn_tiles + row_tile;
        AwaitTurn(turn, item.block, tile >= previous.begin && tile < previous.end);
      }
      Real* to = static_cast<Real*>(args.gq_sum.data) +
                 RowOffset(args.gq_sum, item.probe, sequence.index, head, sequence.query_start + query0);
      AddToQueries<T, Real>(to, args.gq_sum.row, q.rows, args.head_dim, shared, {1, k}, {2, tk});
      if (turn != nullptr) PassTurn(turn, item.block);
    }
    __syncthreads();
  }

  if (segment.suspends) {
    SaveState<Real>(SaveState<Real>(state, gk), gv);
    return;
  }
  const auto store = [&](const TensorView& view, Accumulator<Real>& sum, int32_t columns, Real factor) {
    if (view.data == nullptr) return;
    T* to =
        static_cast<T*>(view.data) + RowOffset(view, item.probe, sequence.index, item.head, sequence.key_start + key0);
    sum.ForEach([&](int, int row, int column, Real& x) {
      if (key0 + row < mask.key_len && column < columns) to[row * view.row + column] = FromReal<T>(x * factor);
    });
  };
  store(args.gk, gk, args.head_dim, scale);
  store(args.gv, gv, args.value_dim, Real(1));
}

}  // namespace flashbob::cuda::simt

#endif  // FLASHBOB_KERNELS_CUDA_SIMT_COLUMNS_CUH_
