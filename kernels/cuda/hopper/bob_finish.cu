// gQ from its fp32 sum: a CTA takes one query tile out of the order of the accumulators (bob_columns.cuh), scales,
// rounds and writes it row by row. Bytes: 4 d in and 2 d out per query.
#include "kernels/cuda/hopper/bob_params.h"
#include "kernels/cuda/tile/hopper/registers.cuh"

namespace flashbob::cuda::hopper {
namespace {

template <typename T, int kHeadDim>
__global__ void __launch_bounds__(128) BobFinishKernel(const FinishParams params) {
  constexpr int kQueries = ColumnsQueries(kHeadDim);
  constexpr int kPitch = kHeadDim + 4;  // lanes of a warp write to 32 banks
  __shared__ __align__(16) float tile[kQueries * kPitch];
  const int64_t query0 = static_cast<int64_t>(blockIdx.x) * kQueries;
  const int32_t head = blockIdx.y;
  const int32_t batch = blockIdx.z;
  const int64_t first_row = (static_cast<int64_t>(batch) * params.heads + head) * PaddedRows(params.query_len) + query0;
  const float4* sums = reinterpret_cast<const float4*>(params.gq_sum + first_row * kHeadDim);
  constexpr int kChunks = kQueries * kHeadDim / 512;
  constexpr int kChunksOfHalf = kQueries / 8;  // chunks of 64 columns of the head dim
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    const float4 value = sums[chunk * 128 + threadIdx.x];
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
  T* gq = static_cast<T*>(params.gq) + batch * params.gq_batch + head * params.gq_head;
#pragma unroll
  for (int row = threadIdx.x / kLanesOfRow; row < kQueries; row += 128 / kLanesOfRow) {
    if (query0 + row >= params.query_len) continue;
    const float* from = tile + row * kPitch + column;
    uint4 pairs;
    pairs.x = RoundPair<T>(from[0] * params.factor, from[1] * params.factor);
    pairs.y = RoundPair<T>(from[2] * params.factor, from[3] * params.factor);
    pairs.z = RoundPair<T>(from[4] * params.factor, from[5] * params.factor);
    pairs.w = RoundPair<T>(from[6] * params.factor, from[7] * params.factor);
    *reinterpret_cast<uint4*>(gq + (query0 + row) * params.gq_row + column) = pairs;
  }
}

template <typename T>
cudaError_t LaunchAs(int32_t head_dim, const FinishParams& params, cudaStream_t stream) {
  const int32_t queries = ColumnsQueries(head_dim);
  const dim3 grid(static_cast<unsigned>((params.query_len + queries - 1) / queries),
                  static_cast<unsigned>(params.heads), static_cast<unsigned>(params.batch));
  if (head_dim == 64) {
    BobFinishKernel<T, 64><<<grid, 128, 0, stream>>>(params);
  } else {
    BobFinishKernel<T, 128><<<grid, 128, 0, stream>>>(params);
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t LaunchBobFinish(HalfType type, int32_t head_dim, const FinishParams& params, cudaStream_t stream) {
  if (params.query_len == 0 || params.heads == 0 || params.batch == 0) return cudaSuccess;
  return type == HalfType::kBFloat16 ? LaunchAs<__nv_bfloat16>(head_dim, params, stream)
                                     : LaunchAs<__half>(head_dim, params, stream);
}

}  // namespace flashbob::cuda::hopper
