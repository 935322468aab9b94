#include "kernels/cuda/hopper/bob_columns_kernel.cuh"

namespace flashbob::cuda::hopper {

const PassKernel* OrderedSecondColumns(HalfType type, int32_t head_dim) { return BobColumnsOf<true>(type, head_dim); }

}  // namespace flashbob::cuda::hopper
