#include "kernels/cuda/hopper/forward.cuh"
#include "kernels/cuda/hopper/kernels.h"
#include "kernels/cuda/hopper/launch.h"
#include "kernels/cuda/hopper/tile_kernel.cuh"

namespace flashbob::cuda::hopper {
namespace {

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
  static const PassKernel kernel = PassKernelOf<Forward<T, kHeadDim>>({
      .name = kHeadDim == 64 ? "Hopper forward, 64" : "Hopper forward, 128",
      .flops_per_sm = kHeadDim == 64 ? 3.8e12 : 4.5e12,
      .launch = &Launch<T, kHeadDim>,
      .interleave = 32,  // so that the last CTAs of a causal pass are short ones, of every head
  });
  return &kernel;
}

}  // namespace

const PassKernel* ForwardOf(HalfType type, int32_t head_dim) {
  return InstanceOf(type, head_dim, [&]<typename T, int kHeadDim>() { return KernelOf<T, kHeadDim>(); });
}

}  // namespace flashbob::cuda::hopper
