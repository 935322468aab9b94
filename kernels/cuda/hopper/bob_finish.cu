// gQ from its fp32 sum: a CTA takes one query tile out of the order of the accumulators (bob_columns.cuh), scales,
// rounds and writes it row by row. Bytes: 4 d in and 2 d out per query.
#include "kernels/cuda/hopper/half_type.h"
#include "kernels/cuda/hopper/kernels.h"
#include "kernels/cuda/hopper/walk.h"
#include "kernels/cuda/tile/hopper/registers.cuh"

namespace flashbob::cuda::hopper {
namespace {

constexpr int kThreads = 128;

template <typename T, int kHeadDim>
__global__ void __launch_bounds__(kThreads) BobFinishKernel(const __grid_constant__ PassArgs args) {
  constexpr int kQueries = ColumnQueries(kHeadDim);
  constexpr int kPitch = kHeadDim + 4;  // lanes of a warp write to 32 banks
  __shared__ __align__(16) float tile[kQueries * kPitch];
  const Item item = ItemAt<Side::kQuery>(args, args.item_begin + blockIdx.x, kQueries);
  const int32_t query0 = item.block * kQueries;
  const int64_t first =
      RowOffset(args.gq_sum, item.probe, item.sequence.index, item.head, FirstPaddedRow(args, item) + query0);
  const auto* sums = reinterpret_cast<const float4*>(static_cast<const float*>(args.gq_sum.data) + first);
  constexpr int kChunks = kQueries * kHeadDim / 512;
  constexpr int kChunksOfHalf = kQueries / 8;  // chunks of 64 columns of the head dim
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    const float4 value = sums[chunk * kThreads + threadIdx.x];
    const int column = chunk / kChunksOfHalf * 64 + threadIdx.x / 32 * 16 + lane / 4;
    float* to = tile + (chunk % kChunksOfHalf * 8 + 2 * (lane % 4)) * kPitch + column;
    to[0] = value.x;
    to[kPitch] = value.y;
    to[8] = value.z;
    to[kPitch + 8] = value.w;
  }
  __syncthreads();
  constexpr int kLanesOfRow = kHeadDim / 8;
  const int column = threadIdx.x % kLanesOfRow * 8;
  if (column >= args.head_dim) return;
  const float factor = static_cast<float>(args.scale) * exp2f(static_cast<float>(-args.power_shift));
  const int64_t at = RowOffset(args.gq, item.probe, item.sequence.index, item.head, item.sequence.query_start + query0);
  T* const gq = static_cast<T*>(args.gq.data) + at + column;
#pragma unroll
  for (int row = threadIdx.x / kLanesOfRow; row < kQueries; row += kThreads / kLanesOfRow) {
    if (query0 + row >= item.sequence.mask.query_len) continue;
    const float* from = tile + row * kPitch + column;
    uint4 pairs;
    pairs.x = RoundPair<T>(from[0] * factor, from[1] * factor);
    pairs.y = RoundPair<T>(from[2] * factor, from[3] * factor);
    pairs.z = RoundPair<T>(from[4] * factor, from[5] * factor);
    pairs.w = RoundPair<T>(from[6] * factor, from[7] * factor);
    *reinterpret_cast<uint4*>(gq + row * args.gq.row) = pairs;
  }
}

template <typename T, int kHeadDim>
const PassKernel* KernelOf() {
  static const PassKernel kernel = {
      .name = kHeadDim == 64 ? "Hopper finish, 64" : "Hopper finish, 128",
      .owned = ColumnQueries(kHeadDim),
      .streamed = 0,
      .threads = kThreads,
      .ctas_per_sm = 12,
      .shared_bytes = 0,
      .state_bytes = 0,
      .flops_per_sm = 0,
      .function = reinterpret_cast<const void*>(&BobFinishKernel<T, kHeadDim>),
  };
  return &kernel;
}

}  // namespace

const PassKernel* Finish(HalfType type, int32_t head_dim) {
  return InstanceOf(type, head_dim, [&]<typename T, int kHeadDim>() { return KernelOf<T, kHeadDim>(); });
}

}  // namespace flashbob::cuda::hopper
