#include "kernels/cuda/hopper/bob_columns_kernel.cuh"

namespace flashbob::cuda::hopper {

const PassKernel* SecondColumns(HalfType type, int32_t head_dim) { return BobColumnsOf<false>(type, head_dim); }

}  // namespace flashbob::cuda::hopper
