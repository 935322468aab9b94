// FragmentSums: where the tensor-core column pass keeps its sums of gQ.
//
// Not row by row but fragment by fragment, as the products leave registers: block of 16 rows, block of 8 columns, lane,
// 4 elements (rows g, g + 8; columns 2t, 2t + 1; g = lane / 4, t = lane % 4). A warp then adds a fragment with one
// 16-byte reduction a lane (fp32), and no lane computes an address. Rows are padded to 16 a sequence, columns to 8.
#ifndef FLASHBOB_KERNELS_CUDA_FRAGMENT_SUMS_CUH_
#define FLASHBOB_KERNELS_CUDA_FRAGMENT_SUMS_CUH_

#include "kernels/cuda/pass.h"
#include "kernels/cuda/walk.h"

namespace flashbob::cuda {

inline constexpr int kFragmentElements = 128;  // 16 x 8

template <typename Real>
struct FragmentSums {
  Real* first;           // of probe, sequence, head 0
  int64_t head_stride;   // elements
  int32_t block_stride;  // of 16 rows

  __device__ FragmentSums(const PassArgs& args, const Item& item, int64_t query_len) {
    const int64_t first_block = args.sequences == nullptr ? 0 : item.sequence.query_start / 16 + item.sequence.index;
    block_stride = (args.head_dim + 7) / 8 * kFragmentElements;
    head_stride = args.gq_sum.head;
    first = static_cast<Real*>(args.gq_sum.data) + item.probe * args.gq_sum.probe +
            item.sequence.index * args.gq_sum.batch + first_block * block_stride;
  }
  __device__ Real* Head(int32_t head) const { return first + head * head_stride; }
  __device__ int64_t RowBlock(int32_t block) const { return static_cast<int64_t>(block) * block_stride; }
};

}  // namespace flashbob::cuda

#endif  // FLASHBOB_KERNELS_CUDA_FRAGMENT_SUMS_CUH_
