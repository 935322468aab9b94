#include "kernels/cuda/hopper/bob_rows.cuh"

namespace flashbob::cuda::hopper {
namespace {

template <typename Kernel>
__global__ void __launch_bounds__(384, 1) BobRowsKernel(const __grid_constant__ RowsParams params) {
  extern __shared__ __align__(1024) unsigned char dynamic_shared[];
  const uint32_t shared = SharedAddress(dynamic_shared);
  if (shared % 1024 != 0) __trap();
  const RowWalk walk(params, Kernel::kQueries, Kernel::kKeys);
  if (threadIdx.x == 0) {
    InitBarrier(Kernel::QueriesLoaded(shared), 1);
    for (int stage = 0; stage < Kernel::kStages; ++stage) {
      for (int slot = 0; slot < 2; ++slot) {
        InitBarrier(Kernel::Full(shared, stage, slot), 1);
        InitBarrier(Kernel::Empty(shared, stage, slot), 8);
      }
    }
    FenceBarrierInit();
  }
  __syncthreads();
  const uint32_t warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
  if (warpgroup == 2) {
    ReleaseRegisters<24>();
    if (threadIdx.x == 256) Kernel::Produce(params, shared, walk);
  } else {
    ClaimRegisters<240>();
    Kernel::Consume(params, shared, walk, warpgroup);
  }
}

template <typename Kernel>
cudaError_t Launch(const RowsParams& params, int64_t items, cudaStream_t stream) {
  const auto kernel = BobRowsKernel<Kernel>;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Kernel::kSharedBytes);
  if (error != cudaSuccess) return error;
  kernel<<<static_cast<unsigned>(items), Kernel::kThreads, Kernel::kSharedBytes, stream>>>(params);
  return cudaGetLastError();
}

template <typename T>
cudaError_t LaunchAs(int32_t head_dim, const RowsParams& params, int64_t items, cudaStream_t stream) {
  if (head_dim == 64) return Launch<BobRows<T, 64>>(params, items, stream);
  return Launch<BobRows<T, 128>>(params, items, stream);
}

}  // namespace

cudaError_t LaunchBobRows(HalfType type, int32_t head_dim, const RowsParams& params, int64_t items,
                          cudaStream_t stream) {
  if (items == 0) return cudaSuccess;
  if (type == HalfType::kBFloat16) return LaunchAs<__nv_bfloat16>(head_dim, params, items, stream);
  return LaunchAs<__half>(head_dim, params, items, stream);
}

}  // namespace flashbob::cuda::hopper
