#include "kernels/cuda/hopper/bob_rows.cuh"
#include "kernels/cuda/hopper/half_type.h"
#include "kernels/cuda/hopper/kernels.h"
#include "kernels/cuda/hopper/launch.h"

namespace flashbob::cuda::hopper {
namespace {

template <typename Kernel>
__global__ void __launch_bounds__(384, 1) BobRowsKernel(const __grid_constant__ MappedArgs args) {
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
        InitBarrier(Kernel::Empty(shared, stage, slot), 8 * kArrivalsOfWarp);
      }
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
    Kernel::Consume(args, shared, walk, share, warpgroup);
  }
}

template <typename T, int kHeadDim>
cudaError_t Launch(const PassKernel& kernel, const PassArgs& args, int64_t ctas, cudaStream_t stream) {
  constexpr int32_t kQueries = BobRows<T, kHeadDim>::kQueries;
  constexpr int32_t kKeys = BobRows<T, kHeadDim>::kKeys;
  TensorView o = args.o;
  if (args.o_is_accumulator) o.data = nullptr;
  return LaunchMapped(kernel, kHalfTypeOf<T>, args,
                      {{args.q, false, false, args.head_dim, kQueries},
                       {args.tq, false, true, args.head_dim, kQueries},
                       {args.k, true, false, args.head_dim, kKeys},
                       {args.tk, true, true, args.head_dim, kKeys},
                       {args.v, true, false, args.value_dim, kKeys},
                       {args.tv, true, true, args.value_dim, kKeys},
                       {o, false, false, args.value_dim, kQueries},
                       {args.dout, false, false, args.value_dim, kQueries},
                       {args.out, false, true, args.value_dim, 64}},
                      ctas, stream);
}

template <typename T, int kHeadDim>
const PassKernel* KernelOf() {
  using Kernel = BobRows<T, kHeadDim>;
  constexpr double kFlopsPerSm = kHeadDim == 64 ? 5.4e12 : 4.9e12;  // on an H200
  static const PassKernel kernel = {
      .name = kHeadDim == 64 ? "Hopper rows, 64" : "Hopper rows, 128",
      .owned = Kernel::kQueries,
      .streamed = Kernel::kKeys,
      .threads = Kernel::kThreads,
      .ctas_per_sm = 1,
      .shared_bytes = Kernel::kSharedBytes,
      .state_bytes = static_cast<size_t>(Kernel::kStateBytes),
      .flops_per_sm = kFlopsPerSm,
      .function = reinterpret_cast<const void*>(&BobRowsKernel<Kernel>),
      .filled_dim = kHeadDim,
      .launch = &Launch<T, kHeadDim>,
      .compact_walk = true,
  };
  return &kernel;
}

}  // namespace

const PassKernel* Rows(HalfType type, int32_t head_dim) {
  if (type == HalfType::kBFloat16)
    return head_dim == 64 ? KernelOf<__nv_bfloat16, 64>() : KernelOf<__nv_bfloat16, 128>();
  return head_dim == 64 ? KernelOf<__half, 64>() : KernelOf<__half, 128>();
}

}  // namespace flashbob::cuda::hopper
