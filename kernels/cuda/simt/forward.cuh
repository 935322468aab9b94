// Forward, plain: S = tau Q K^T, L = logsumexp(S), O = softmax(S) V. One CTA owns kOwned queries and streams keys.
//
// A row keeps its running maximum m, the sum l of exp(S - m), and O scaled alike (online softmax).
#ifndef FLASHBOB_KERNELS_CUDA_SIMT_FORWARD_CUH_
#define FLASHBOB_KERNELS_CUDA_SIMT_FORWARD_CUH_

#include "kernels/cuda/simt/block.cuh"

namespace flashbob::cuda::simt {

template <typename Real>
inline constexpr size_t kForwardStateBytes = kAccumulatorBytes<Real> + 2 * sizeof(Real) * kThreads;

template <typename T>
__global__ void __launch_bounds__(kThreads, 1) Forward(__grid_constant__ const PassArgs args) {
  using Real = typename RealOf<T>::Type;
  using Sizes = Tile<Real>;
  // Row statistics: kGroup threads share an owned row, each takes kPart of the streamed ones.
  constexpr int kGroup = kThreads / Sizes::kOwned;
  constexpr int kPart = Sizes::kStreamed / kGroup;
  __shared__ Shared<Real> shared;

  const Item item = ItemAt<Side::kQuery>(args, args.item_begin + blockIdx.x, Sizes::kOwned);
  const Sequence& sequence = item.sequence;
  const BandMask& mask = sequence.mask;
  const Segment segment = SegmentOf(args, KeyTiles(mask, item.block, Sizes::kOwned, Sizes::kStreamed));
  if (!segment.active) return;

  const int tx = threadIdx.x % 16;
  const int ty = threadIdx.x / 16;
  const int stat_row = threadIdx.x / kGroup;
  const int stat_part = threadIdx.x % kGroup;
  const int64_t query0 = static_cast<int64_t>(item.block) * Sizes::kOwned;
  const int32_t kv_head = item.head / (args.heads / args.kv_heads);
  const Rows<T> q =
      RowsOf<T>(args.q, 0, sequence.index, item.head, sequence.query_start, query0, mask.query_len, args.head_dim);
  Accumulator<Real> sum;
  Real largest = -Infinity<Real>();  // of row stat_row, the same in its threads
  Real total = 0;
  if (segment.resumes) {
    const Real* state = LoadState<Real>(StateOf<Real>(args, kForwardStateBytes<Real>), sum);
    largest = state[0];
    total = state[kThreads];
  } else {
    sum.Clear();
  }

  for (int64_t tile = segment.begin; tile < segment.end; ++tile) {
    const int64_t key0 = tile * Sizes::kStreamed;
    const Rows<T> k =
        RowsOf<T>(args.k, 0, sequence.index, kv_head, sequence.key_start, key0, mask.key_len, args.head_dim);
    const Rows<T> v =
        RowsOf<T>(args.v, 0, sequence.index, kv_head, sequence.key_start, key0, mask.key_len, args.value_dim);
    Real scores[Sizes::kRows][Sizes::kVector] = {};
    AddScores<T, Real>(scores, shared, k, q);
#pragma unroll
    for (int i = 0; i < Sizes::kRows; ++i) {
#pragma unroll
      for (int j = 0; j < Sizes::kVector; ++j) {
        const int64_t key = key0 + ty + 16 * i;
        const int64_t query = query0 + tx * Sizes::kVector + j;
        const bool visible = key < mask.key_len && mask.Visible(query, key);
        scores[i][j] = visible ? scores[i][j] * static_cast<Real>(args.scale) : -Infinity<Real>();
      }
    }
    StoreLeft(shared.left[0], scores);
    __syncthreads();
    Real tile_largest = largest;
#pragma unroll
    for (int s = 0; s < kPart; ++s) {
      tile_largest = fmax(tile_largest, shared.left[0][stat_part * kPart + s][stat_row]);
    }
#pragma unroll
    for (int offset = kGroup / 2; offset > 0; offset /= 2) {
      tile_largest = fmax(tile_largest, __shfl_xor_sync(0xffffffffu, tile_largest, offset));
    }
    // Rows that have seen no key yet keep everything at zero. (NaN scores pass fmax by and reach P through exp.)
    const bool none = tile_largest == -Infinity<Real>();
    const Real correction = none ? Real(1) : Exp(largest - tile_largest);
    Real tile_total = 0;
#pragma unroll
    for (int s = 0; s < kPart; ++s) {
      Real& score = shared.left[0][stat_part * kPart + s][stat_row];
      const Real p = none && score == -Infinity<Real>() ? Real(0) : Exp(score - (none ? Real(0) : tile_largest));
      score = p;
      tile_total += p;
    }
#pragma unroll
    for (int offset = kGroup / 2; offset > 0; offset /= 2) {
      tile_total += __shfl_xor_sync(0xffffffffu, tile_total, offset);
    }
    largest = tile_largest;
    total = total * correction + tile_total;
    if (stat_part == 0) shared.column[stat_row] = correction;
    __syncthreads();
    sum.ForEach([&](int, int row, int, Real& x) { x *= shared.column[row]; });
    AddProducts<T, Real>(sum, shared, {0, v}, {0, {}});
    __syncthreads();
  }

  if (segment.suspends) {
    Real* state = SaveState<Real>(StateOf<Real>(args, kForwardStateBytes<Real>), sum);
    state[0] = largest;
    state[kThreads] = total;
    return;
  }
  __syncthreads();
  if (stat_part == 0) {
    const bool none = total == Real(0);
    shared.column[stat_row] = none ? Real(1) : total;
    if (args.out_lse.data != nullptr && query0 + stat_row < mask.query_len) {
      Real* lse = static_cast<Real*>(args.out_lse.data) +
                  RowOffset(args.out_lse, 0, sequence.index, item.head, sequence.query_start + query0 + stat_row);
      *lse = none ? -Infinity<Real>() : largest + Log(total);
    }
  }
  __syncthreads();
  if (args.out.data == nullptr) return;
  const int64_t base = RowOffset(args.out, 0, sequence.index, item.head, sequence.query_start + query0);
  sum.ForEach([&](int, int row, int column, Real& x) {
    if (query0 + row >= mask.query_len || column >= args.value_dim) return;
    const int64_t at = base + row * args.out.row + column;
    const Real o = x / shared.column[row];
    if (args.o_is_accumulator) {
      static_cast<Real*>(args.out.data)[at] = o;
    } else {
      static_cast<T*>(args.out.data)[at] = FromReal<T>(o);
    }
  });
}

}  // namespace flashbob::cuda::simt

#endif  // FLASHBOB_KERNELS_CUDA_SIMT_FORWARD_CUH_
