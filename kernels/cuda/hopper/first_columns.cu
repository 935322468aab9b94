#include "kernels/cuda/hopper/first_columns.cuh"
#include "kernels/cuda/hopper/half_type.h"
#include "kernels/cuda/hopper/kernels.h"
#include "kernels/cuda/hopper/launch.h"

namespace flashbob::cuda::hopper {
namespace {

template <typename Kernel>
__global__ void __launch_bounds__(384, 1) FirstColumnsKernel(const __grid_constant__ MappedArgs args) {
  extern __shared__ __align__(1024) unsigned char dynamic_shared[];
  const uint32_t shared = SharedAddress(dynamic_shared);
  if (shared % 1024 != 0) __trap();
  const int64_t number = blockIdx.x;
  const ColumnWalk walk(args, number, Kernel::kKeys, Kernel::kQueries);
  const WalkShare share(args.pass, number, walk.steps, walk.masked_steps);
  if (!share.active) return;
  if (threadIdx.x == 0) {
    InitBarrier(Kernel::KeysLoaded(shared), 1);
    for (int stage = 0; stage < Kernel::kStages; ++stage) {
      InitBarrier(Kernel::FullStage(shared, stage), 1);
      InitBarrier(Kernel::EmptyStage(shared, stage), 8 * kArrivalsOfWarp);
    }
    FenceBarrierInit();
    Kernel::StoreInfo(shared, number, walk);
  }
  __syncthreads();
  const uint32_t warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
  if (warpgroup == 2) {
    ReleaseRegisters<24>();
    if (threadIdx.x == 256) Kernel::Produce(args, shared, walk, share);
  } else {
    ClaimRegisters<240>();
    Kernel::Consume(args, shared, share, warpgroup);
  }
}

template <typename T, int kHeadDim>
cudaError_t Launch(const PassKernel& kernel, const PassArgs& args, int64_t ctas, cudaStream_t stream) {
  using Kernel = FirstColumns<T, kHeadDim>;
  return LaunchMapped(kernel, kHalfTypeOf<T>, args,
                      {{args.k, true, false, args.head_dim, Kernel::kKeys},
                       {args.v, true, false, args.value_dim, Kernel::kKeys},
                       {args.q, false, false, args.head_dim, Kernel::kQueries},
                       {args.tdo, false, false, args.value_dim, Kernel::kQueries},
                       {args.gk, true, false, args.head_dim, 64},
                       {args.gv, true, false, args.value_dim, 64}},
                      ctas, stream);
}

template <typename T, int kHeadDim>
const PassKernel* KernelOf() {
  using Kernel = FirstColumns<T, kHeadDim>;
  constexpr double kFlopsPerSm = 4.0e12;  // on an H200
  // The sums of dQ of the heads at work should stay in L2: 8 or 16 MB at 16,384 queries.
  constexpr int32_t kHeadsAtOnce = 2;
  static const PassKernel kernel = {
      .name = kHeadDim == 64 ? "Hopper first columns, 64" : "Hopper first columns, 128",
      .owned = Kernel::kKeys,
      .streamed = Kernel::kQueries,
      .threads = Kernel::kThreads,
      .ctas_per_sm = 1,
      .shared_bytes = Kernel::kSharedBytes,
      .state_bytes = static_cast<size_t>(Kernel::kStateBytes),
      .flops_per_sm = kFlopsPerSm,
      .function = reinterpret_cast<const void*>(&FirstColumnsKernel<Kernel>),
      .filled_dim = kHeadDim,
      .launch = &Launch<T, kHeadDim>,
      .interleave = kHeadsAtOnce,
      .compact_walk = true,
  };
  return &kernel;
}

}  // namespace

const PassKernel* FirstColumnsOf(HalfType type, int32_t head_dim) {
  if (type == HalfType::kBFloat16)
    return head_dim == 64 ? KernelOf<__nv_bfloat16, 64>() : KernelOf<__nv_bfloat16, 128>();
  return head_dim == 64 ? KernelOf<__half, 64>() : KernelOf<__half, 128>();
}

}  // namespace flashbob::cuda::hopper
