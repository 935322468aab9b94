// In builds without sm_90a.
#include "kernels/cuda/hopper/kernels.h"

namespace flashbob::cuda::hopper {

const PassKernel* Rows(HalfType, int32_t) { return nullptr; }
const PassKernel* SecondColumns(HalfType, int32_t) { return nullptr; }
const PassKernel* OrderedSecondColumns(HalfType, int32_t) { return nullptr; }
const PassKernel* Finish(HalfType, int32_t) { return nullptr; }
const PassKernel* ForwardOf(HalfType, int32_t) { return nullptr; }
const PassKernel* RowDotsOf(HalfType, int32_t) { return nullptr; }
const PassKernel* FirstColumnsOf(HalfType, int32_t) { return nullptr; }

}  // namespace flashbob::cuda::hopper
