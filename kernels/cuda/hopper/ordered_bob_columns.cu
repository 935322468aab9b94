#include "kernels/cuda/hopper/bob_columns_kernel.cuh"

namespace flashbob::cuda::hopper {

const PassKernel* OrderedSecondColumns(HalfType type, int32_t head_dim) {
  if (type == HalfType::kBFloat16) {
    return head_dim == 64 ? BobColumnsOf<__nv_bfloat16, 64, true>() : BobColumnsOf<__nv_bfloat16, 128, true>();
  }
  return head_dim == 64 ? BobColumnsOf<__half, 64, true>() : BobColumnsOf<__half, 128, true>();
}

}  // namespace flashbob::cuda::hopper
