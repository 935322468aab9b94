#include "kernels/cuda/hopper/bob_rows.cuh"
#include "kernels/cuda/hopper/kernels.h"
#include "kernels/cuda/hopper/launch.h"
#include "kernels/cuda/hopper/tile_kernel.cuh"

namespace flashbob::cuda::hopper {
namespace {

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
  static const PassKernel kernel = PassKernelOf<BobRows<T, kHeadDim>>({
      .name = kHeadDim == 64 ? "Hopper rows, 64" : "Hopper rows, 128",
      .flops_per_sm = kHeadDim == 64 ? 5.4e12 : 4.9e12,
      .launch = &Launch<T, kHeadDim>,
  });
  return &kernel;
}

}  // namespace

const PassKernel* Rows(HalfType type, int32_t head_dim) {
  return InstanceOf(type, head_dim, [&]<typename T, int kHeadDim>() { return KernelOf<T, kHeadDim>(); });
}

}  // namespace flashbob::cuda::hopper
