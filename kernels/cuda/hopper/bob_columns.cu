#include "kernels/cuda/hopper/bob_columns.cuh"

namespace flashbob::cuda::hopper {
namespace {

template <typename T, int kHeadDim>
__global__ void __launch_bounds__(384, 1) BobColumnsKernel(const __grid_constant__ ColumnsParams params) {
  using Kernel = BobColumns<T, kHeadDim>;
  extern __shared__ __align__(1024) unsigned char dynamic_shared[];
  const uint32_t shared = SharedAddress(dynamic_shared);
  if (shared % 1024 != 0) __trap();
  const ColumnWalk walk(params, Kernel::kKeys, Kernel::kQueries);
  if (threadIdx.x == 0) {
    InitBarrier(Kernel::KeysLoaded(shared), 1);
    for (int stage = 0; stage < Kernel::kStages; ++stage) {
      InitBarrier(Kernel::FullStage(shared, stage), 1);
      InitBarrier(Kernel::EmptyStage(shared, stage), 8);
    }
    StoreShared(shared + Kernel::kInfoOffset + Kernel::kStages * 8, static_cast<uint32_t>(walk.key0));
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

template <typename T, int kHeadDim>
cudaError_t Launch(const ColumnsParams& params, int64_t items, cudaStream_t stream) {
  using Kernel = BobColumns<T, kHeadDim>;
  constexpr int kBytes = Kernel::kSharedBytes;
  const auto kernel = BobColumnsKernel<T, kHeadDim>;
  const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  kernel<<<static_cast<unsigned>(items), Kernel::kThreads, kBytes, stream>>>(params);
  return cudaGetLastError();
}

template <typename T>
cudaError_t LaunchAs(int32_t head_dim, const ColumnsParams& params, int64_t items, cudaStream_t stream) {
  return head_dim == 64 ? Launch<T, 64>(params, items, stream) : Launch<T, 128>(params, items, stream);
}

}  // namespace

cudaError_t LaunchBobColumns(HalfType type, int32_t head_dim, const ColumnsParams& params, int64_t items,
                             cudaStream_t stream) {
  if (items == 0) return cudaSuccess;
  if (type == HalfType::kBFloat16) return LaunchAs<__nv_bfloat16>(head_dim, params, items, stream);
  return LaunchAs<__half>(head_dim, params, items, stream);
}

}  // namespace flashbob::cuda::hopper
