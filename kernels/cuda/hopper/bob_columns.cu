#include "kernels/cuda/hopper/bob_columns_kernel.cuh"

namespace flashbob::cuda::hopper {

const PassKernel* SecondColumns(HalfType type, int32_t head_dim) {
  if (type == HalfType::kBFloat16) {
    return head_dim == 64 ? BobColumnsOf<__nv_bfloat16, 64, false>() : BobColumnsOf<__nv_bfloat16, 128, false>();
  }
  return head_dim == 64 ? BobColumnsOf<__half, 64, false>() : BobColumnsOf<__half, 128, false>();
}

}  // namespace flashbob::cuda::hopper
