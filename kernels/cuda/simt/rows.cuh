// Rows pass, plain: the JVP, which is pass 1 of BoB (t stands for u). One CTA owns kOwned queries and streams keys.
//
//     P = exp(S - L)      G = tau (tQ K^T + Q tK^T)      c = rowsum(P . G)
//     tO = (P . G) V + P tV - c O                        tL = c
//     r = rowsum(dO . tO) + rowsum(tdO . O)              D = rowsum(dO . O)
#ifndef FLASHBOB_KERNELS_CUDA_SIMT_ROWS_CUH_
#define FLASHBOB_KERNELS_CUDA_SIMT_ROWS_CUH_

#include "kernels/cuda/simt/block.cuh"

namespace flashbob::cuda::simt {

template <typename Real>
inline constexpr size_t kRowsStateBytes = kAccumulatorBytes<Real> + Tile<Real>::kVector * sizeof(Real) * kThreads;

// Row scalar L as kernels use it: +inf for a row that sees no key, and for rows past the end, so that P = 0.
template <typename Real>
__device__ inline Real LoadLse(const PassArgs& args, const Item& item, int64_t row) {
  if (row >= item.sequence.mask.query_len) return Infinity<Real>();
  const Real lse = static_cast<const Real*>(
      args.lse.data)[RowOffset(args.lse, 0, item.sequence.index, item.head, item.sequence.query_start + row)];
  return lse == -Infinity<Real>() ? Infinity<Real>() : lse;
}

template <typename T>
__global__ void __launch_bounds__(kThreads, 1) TangentRows(__grid_constant__ const PassArgs args) {
  using Real = typename RealOf<T>::Type;
  using Sizes = Tile<Real>;
  constexpr int kVector = Sizes::kVector;
  __shared__ Shared<Real> shared;

  const Item item = ItemAt<Side::kQuery>(args, args.item_begin + blockIdx.x, Sizes::kOwned);
  const Sequence& sequence = item.sequence;
  const BandMask& mask = sequence.mask;
  const Segment segment = SegmentOf(args, KeyTiles(mask, item.block, Sizes::kOwned, Sizes::kStreamed));
  if (!segment.active) return;

  const int tx = threadIdx.x % 16;
  const int ty = threadIdx.x / 16;
  const int64_t query0 = static_cast<int64_t>(item.block) * Sizes::kOwned;
  const int32_t kv_head = item.head / (args.heads / args.kv_heads);
  const Real scale = static_cast<Real>(args.scale);
  const auto query_rows = [&](const TensorView& view, int32_t probe, int32_t columns) {
    return RowsOf<T>(view, probe, sequence.index, item.head, sequence.query_start, query0, mask.query_len, columns);
  };
  const Rows<T> q = query_rows(args.q, 0, args.head_dim);
  const Rows<T> tq = query_rows(args.tq, item.probe, args.head_dim);
  Real lse[kVector];
#pragma unroll
  for (int j = 0; j < kVector; ++j) lse[j] = LoadLse<Real>(args, item, query0 + tx * kVector + j);

  Accumulator<Real> sum;
  Real c[kVector] = {};  // of queries tx * kVector + j over the streamed rows of this thread
  if (segment.resumes) {
    const Real* state = LoadState<Real>(StateOf<Real>(args, kRowsStateBytes<Real>), sum);
#pragma unroll
    for (int j = 0; j < kVector; ++j) c[j] = state[j * kThreads];
  } else {
    sum.Clear();
  }

  for (int64_t tile = segment.begin; tile < segment.end; ++tile) {
    const int64_t key0 = tile * Sizes::kStreamed;
    const auto key_rows = [&](const TensorView& view, int32_t probe, int32_t columns) {
      return RowsOf<T>(view, probe, sequence.index, kv_head, sequence.key_start, key0, mask.key_len, columns);
    };
    const Rows<T> k = key_rows(args.k, 0, args.head_dim);
    Real p[Sizes::kRows][kVector] = {};
    Real g[Sizes::kRows][kVector] = {};
    AddScores<T, Real>(p, shared, k, q);
    AddScores<T, Real>(g, shared, k, tq);
    AddScores<T, Real>(g, shared, key_rows(args.tk, item.probe, args.head_dim), q);
    Real tile_c[kVector] = {};
#pragma unroll
    for (int i = 0; i < Sizes::kRows; ++i) {
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        const int64_t key = key0 + ty + 16 * i;
        const bool visible = key < mask.key_len && mask.Visible(query0 + tx * kVector + j, key);
        p[i][j] = visible ? Exp(p[i][j] * scale - lse[j]) : Real(0);
        g[i][j] *= p[i][j] * scale;
        tile_c[j] += g[i][j];
      }
    }
#pragma unroll
    for (int j = 0; j < kVector; ++j) c[j] += tile_c[j];
    StoreLeft(shared.left[0], p);
    StoreLeft(shared.left[1], g);
    const bool has_g = args.tq.data != nullptr || args.tk.data != nullptr;
    AddProducts<T, Real>(sum, shared, {1, has_g ? key_rows(args.v, 0, args.value_dim) : Rows<T>{}},
                         {0, key_rows(args.tv, item.probe, args.value_dim)});
    __syncthreads();
  }

  if (segment.suspends) {
    Real* state = SaveState<Real>(StateOf<Real>(args, kRowsStateBytes<Real>), sum);
#pragma unroll
    for (int j = 0; j < kVector; ++j) state[j * kThreads] = c[j];
    return;
  }

  // c over all streamed rows.
  __syncthreads();
#pragma unroll
  for (int j = 0; j < kVector; ++j) shared.left[0][ty][tx * kVector + j] = c[j];
  __syncthreads();
  if (threadIdx.x < Sizes::kOwned) {
    Real row_c = 0;
    for (int s = 0; s < 16; ++s) row_c += shared.left[0][s][threadIdx.x];
    shared.column[threadIdx.x] = row_c;
  }
  __syncthreads();

  const auto row_of = [&](const TensorView& view, int32_t probe, int row) {
    return RowOffset(view, probe, sequence.index, item.head, sequence.query_start + query0 + row);
  };
  Real r[kVector] = {};
  Real d[kVector] = {};
  sum.ForEach([&](int i, int row, int column, Real& x) {
    if (query0 + row >= mask.query_len || column >= args.value_dim) return;
    const int64_t o_at = row_of(args.o, 0, row) + column;
    const Real o = args.o_is_accumulator ? static_cast<const Real*>(args.o.data)[o_at]
                                         : static_cast<Real>(ToReal(static_cast<const T*>(args.o.data)[o_at]));
    x -= shared.column[row] * o;
    if (args.out.data != nullptr) {
      static_cast<T*>(args.out.data)[row_of(args.out, item.probe, row) + column] = FromReal<T>(x);
    }
    if (!args.write_row_scalars) return;
    const Real dout =
        static_cast<Real>(ToReal(static_cast<const T*>(args.dout.data)[row_of(args.dout, 0, row) + column]));
    r[i] += dout * x;
    d[i] += dout * o;
    if (args.tdo.data != nullptr) {
      r[i] += o * static_cast<Real>(
                      ToReal(static_cast<const T*>(args.tdo.data)[row_of(args.tdo, item.probe, row) + column]));
    }
  });
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    const Real row_r = SumOverTx(r[i]);
    const Real row_d = SumOverTx(d[i]);
    const int row = ty * kVector + i;
    if (tx != 0 || query0 + row >= mask.query_len) continue;
    if (args.write_row_scalars) {
      const Real lse_in_units = LoadLse<Real>(args, item, query0 + row) * static_cast<Real>(args.lse_factor) -
                                static_cast<Real>(args.lse_shift);
      const RowScalars<Real> scalars = {lse_in_units, row_d, shared.column[row], row_r};
      static_cast<RowScalars<Real>*>(args.row_scalars.data)[row_of(args.row_scalars, item.probe, row)] = scalars;
    }
    if (args.out_lse.data != nullptr) {
      static_cast<Real*>(args.out_lse.data)[row_of(args.out_lse, item.probe, row)] = shared.column[row];
    }
  }
}

}  // namespace flashbob::cuda::simt

#endif  // FLASHBOB_KERNELS_CUDA_SIMT_ROWS_CUH_
