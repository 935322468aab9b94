#include "kernels/cuda/hopper/forward.cuh"
#include "kernels/cuda/hopper/half_type.h"
#include "kernels/cuda/hopper/kernels.h"
#include "kernels/cuda/hopper/launch.h"

namespace flashbob::cuda::hopper {
namespace {

template <typename Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, 1) ForwardKernel(const __grid_constant__ MappedArgs args) {
  extern __shared__ __align__(1024) unsigned char dynamic_shared[];
  const uint32_t shared = SharedAddress(dynamic_shared);
  if (shared % 1024 != 0) __trap();
  const int64_t number = blockIdx.x;
  const RowWalk walk(args, number, Kernel::kQueries, Kernel::kKeys);
  const WalkShare share(args.pass, number, walk.steps, walk.masked_steps);
  if (!share.active) return;
  if (threadIdx.x == 0) {
    InitBarrier(Kernel::QueriesLoaded(shared), 1);
    for (int stage = 0; stage < Kernel::kStages; ++stage) {
      for (int slot = 0; slot < 2; ++slot) {
        InitBarrier(Kernel::Full(shared, stage, slot), 1);
        InitBarrier(Kernel::Empty(shared, stage, slot), 4 * Kernel::kGroups * kArrivalsOfWarp);
      }
    }
    FenceBarrierInit();
    Kernel::StoreInfo(shared, number, walk);
  }
  __syncthreads();
  const uint32_t warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
  if (warpgroup == Kernel::kGroups) {
    ReleaseRegisters<24>();
    if (threadIdx.x == Kernel::kConsumers) Kernel::Produce(args, shared, walk, share);
  } else {
    ClaimRegisters<Kernel::kConsumerRegisters>();
    Kernel::Consume(args, shared, share, warpgroup);
  }
}

template <typename T, int kHeadDim>
cudaError_t Launch(const PassKernel& kernel, const PassArgs& args, int64_t ctas, cudaStream_t stream) {
  using Kernel = Forward<T, kHeadDim>;
  TensorView out = args.out;
  if (args.o_is_accumulator) out.data = nullptr;
  return LaunchMapped(kernel, kHalfTypeOf<T>, args,
                      {{args.q, false, false, args.head_dim, Kernel::kQueries},
                       {args.k, true, false, args.head_dim, Kernel::kKeys},
                       {args.v, true, false, args.value_dim, Kernel::kKeys},
                       {out, false, false, args.value_dim, 64}},
                      ctas, stream);
}

template <typename T, int kHeadDim>
const PassKernel* KernelOf() {
  using Kernel = Forward<T, kHeadDim>;
  constexpr double kFlopsPerSm = kHeadDim == 64 ? 3.8e12 : 4.5e12;  // on an H200
  constexpr int32_t kHeadsAtOnce = 32;  // so that the last CTAs of a causal pass are short ones, of every head
  static const PassKernel kernel = {
      .name = kHeadDim == 64 ? "Hopper forward, 64" : "Hopper forward, 128",
      .owned = Kernel::kQueries,
      .streamed = Kernel::kKeys,
      .threads = Kernel::kThreads,
      .ctas_per_sm = 1,
      .shared_bytes = Kernel::kSharedBytes,
      .state_bytes = static_cast<size_t>(Kernel::kStateBytes),
      .flops_per_sm = kFlopsPerSm,
      .function = reinterpret_cast<const void*>(&ForwardKernel<Kernel>),
      .filled_dim = kHeadDim,
      .launch = &Launch<T, kHeadDim>,
      .interleave = kHeadsAtOnce,
      .compact_walk = true,
  };
  return &kernel;
}

}  // namespace

const PassKernel* ForwardOf(HalfType type, int32_t head_dim) {
  if (type == HalfType::kBFloat16)
    return head_dim == 64 ? KernelOf<__nv_bfloat16, 64>() : KernelOf<__nv_bfloat16, 128>();
  return head_dim == 64 ? KernelOf<__half, 64>() : KernelOf<__half, 128>();
}

}  // namespace flashbob::cuda::hopper
