// The row scalars of the first-order column pass, in its order: L in its units, and r = rowsum(tdO . O). A CTA takes
// one tile of query rows, d / 8 lanes a row. Bytes: 4 d in (6 d where o was recomputed) and 16 out per query.
#include "kernels/cuda/hopper/half_type.h"
#include "kernels/cuda/hopper/kernels.h"
#include "kernels/cuda/hopper/walk.h"
#include "kernels/cuda/tile/hopper/registers.cuh"

namespace flashbob::cuda::hopper {
namespace {

constexpr int kThreads = 256;

// Eight neighbouring columns of a row.
struct Columns {
  float2 pairs[4];
};

template <typename T>
__device__ Columns LoadColumns(const T* from) {
  const uint4 bits = *reinterpret_cast<const uint4*>(from);
  return {{ExpandPair<T>(bits.x), ExpandPair<T>(bits.y), ExpandPair<T>(bits.z), ExpandPair<T>(bits.w)}};
}

__device__ Columns LoadColumns(const float* from) {
  const float4 first = *reinterpret_cast<const float4*>(from);
  const float4 second = *reinterpret_cast<const float4*>(from + 4);
  return {{{first.x, first.y}, {first.z, first.w}, {second.x, second.y}, {second.z, second.w}}};
}

template <typename T, int kHeadDim>
__global__ void __launch_bounds__(kThreads) RowDotsKernel(const __grid_constant__ PassArgs args) {
  constexpr int kTile = ColumnQueries(kHeadDim);
  constexpr int kLanes = kHeadDim / 8;
  const Item item = ItemAt<Side::kQuery>(args, args.item_begin + blockIdx.x, kTile);
  const int32_t query_len = static_cast<int32_t>(item.sequence.mask.query_len);
  const int32_t query0 = item.block * kTile;
  // The last tile also fills what pads the sequence's rows.
  const bool last = query0 + kTile >= query_len;
  const int32_t end =
      last ? (query_len + kFirstColumnQueries - 1) / kFirstColumnQueries * kFirstColumnQueries : query0 + kTile;
  const int64_t first_scalar =
      RowOffset(args.row_scalars, 0, item.sequence.index, item.head, FirstPaddedRow(args, item));
  const int column = threadIdx.x % kLanes * 8;
  for (int32_t query = query0 + static_cast<int32_t>(threadIdx.x) / kLanes; query < end; query += kThreads / kLanes) {
    float sum = 0;
    float lse = INFINITY;
    if (query < query_len) {
      const int64_t row = item.sequence.query_start + query;
      const int64_t o_at = RowOffset(args.o, 0, item.sequence.index, item.head, row) + column;
      const int64_t tdo_at = RowOffset(args.tdo, 0, item.sequence.index, item.head, row) + column;
      if (column < args.value_dim) {
        const Columns o = args.o_is_accumulator ? LoadColumns(static_cast<const float*>(args.o.data) + o_at)
                                                : LoadColumns(static_cast<const T*>(args.o.data) + o_at);
        const Columns tdo = LoadColumns(static_cast<const T*>(args.tdo.data) + tdo_at);
#pragma unroll
        for (int i = 0; i < 4; ++i) sum += o.pairs[i].x * tdo.pairs[i].x + o.pairs[i].y * tdo.pairs[i].y;
      }
      lse = static_cast<const float*>(args.lse.data)[RowOffset(args.lse, 0, item.sequence.index, item.head, row)];
      lse =
          lse == -INFINITY ? INFINITY : lse * static_cast<float>(args.lse_factor) - static_cast<float>(args.lse_shift);
    }
#pragma unroll
    for (int offset = kLanes / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    const int plane = threadIdx.x % kLanes;
    if (plane < kRowScalars) {
      const int64_t to = first_scalar + query;
      static_cast<float*>(args.row_scalars.data)[to / 32 * (32 * kRowScalars) + plane * 32 + to % 32] = plane == 0 ? lse
                                                                                                        : plane == 3
                                                                                                            ? sum
                                                                                                            : 0.0f;
    }
  }
}

template <typename T, int kHeadDim>
const PassKernel* KernelOf() {
  static const PassKernel kernel = {
      .name = kHeadDim == 64 ? "Hopper row dots, 64" : "Hopper row dots, 128",
      .owned = ColumnQueries(kHeadDim),
      .streamed = 0,
      .threads = kThreads,
      .ctas_per_sm = 8,
      .shared_bytes = 0,
      .state_bytes = 0,
      .flops_per_sm = 0,
      .function = reinterpret_cast<const void*>(&RowDotsKernel<T, kHeadDim>),
  };
  return &kernel;
}

}  // namespace

const PassKernel* RowDotsOf(HalfType type, int32_t head_dim) {
  return InstanceOf(type, head_dim, [&]<typename T, int kHeadDim>() { return KernelOf<T, kHeadDim>(); });
}

}  // namespace flashbob::cuda::hopper
