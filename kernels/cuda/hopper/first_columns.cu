#include "kernels/cuda/hopper/first_columns.cuh"
#include "kernels/cuda/hopper/kernels.h"
#include "kernels/cuda/hopper/launch.h"
#include "kernels/cuda/hopper/tile_kernel.cuh"

namespace flashbob::cuda::hopper {
namespace {

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
  static const PassKernel kernel = PassKernelOf<FirstColumns<T, kHeadDim>>({
      .name = kHeadDim == 64 ? "Hopper first columns, 64" : "Hopper first columns, 128",
      .flops_per_sm = 4.0e12,
      .launch = &Launch<T, kHeadDim>,
      .interleave = 2,  // the sums of dQ of the heads at work should stay in L2: 8 or 16 MB at 16,384 queries
  });
  return &kernel;
}

}  // namespace

const PassKernel* FirstColumnsOf(HalfType type, int32_t head_dim) {
  return InstanceOf(type, head_dim, [&]<typename T, int kHeadDim>() { return KernelOf<T, kHeadDim>(); });
}

}  // namespace flashbob::cuda::hopper
