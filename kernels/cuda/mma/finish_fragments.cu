// gq = scale 2^-power_shift of the sums that the tensor-core column pass leaves in the order of fragments, rounded.
//
// One CTA converts one block of 16 rows: a thread reads the four elements of one lane and writes two pairs.
#include "kernels/cuda/fragment_sums.cuh"
#include "kernels/cuda/mma/common.cuh"
#include "kernels/cuda/mma/kernels.h"

namespace flashbob::cuda::mma {
namespace {

constexpr int kFinishThreads = 128;
constexpr int kFinishRows = 16;

template <typename T>
__global__ void __launch_bounds__(kFinishThreads) FinishFragments(__grid_constant__ const PassArgs args) {
  const Item item = ItemAt<Side::kQuery>(args, args.item_begin + blockIdx.x, kFinishRows);
  using Real = RealOf<T>;
  const FragmentSums<Real> sums(args, item, item.sequence.mask.query_len);
  const Real* block = sums.Head(item.head) + sums.RowBlock(item.block);
  const auto factor = static_cast<Real>(args.scale * exp2(-static_cast<double>(args.power_shift)));
  const int32_t row0 = item.block * kFinishRows;
  const auto query_len = static_cast<int32_t>(item.sequence.mask.query_len);
  const int64_t at = RowOffset(args.gq, item.probe, item.sequence.index, item.head, item.sequence.query_start + row0);
  for (int i = static_cast<int>(threadIdx.x); i < (args.head_dim + 7) / 8 * 32; i += kFinishThreads) {
    const auto x = reinterpret_cast<const Pair<Real>*>(block)[i * 2];
    const auto y = reinterpret_cast<const Pair<Real>*>(block)[i * 2 + 1];
    const int32_t row = i % 32 / 4;
    const int32_t column = i / 32 * 8 + i % 4 * 2;
    const int32_t columns_left = args.head_dim - column;
    if (columns_left <= 0) continue;
    if (row0 + row < query_len) {
      StorePair<T>(args.gq.data, at + row * args.gq.row + column, x.x * factor, x.y * factor, columns_left,
                   args.row_alignment < 16);
    }
    if (row0 + row + 8 < query_len) {
      StorePair<T>(args.gq.data, at + (row + 8) * args.gq.row + column, y.x * factor, y.y * factor, columns_left,
                   args.row_alignment < 16);
    }
  }
}

PassKernel FinishKernel(const char* name, const void* function) {
  return {name, kFinishRows, 0, kFinishThreads, 16, 0, 0, 0, function};
}

}  // namespace

const PassKernel& FinishFragmentsBFloat16() {
  static const PassKernel kernel =
      FinishKernel("finish, bf16", reinterpret_cast<const void*>(&FinishFragments<__nv_bfloat16>));
  return kernel;
}

const PassKernel& FinishFragmentsFloat16() {
  static const PassKernel kernel =
      FinishKernel("finish, fp16", reinterpret_cast<const void*>(&FinishFragments<__half>));
  return kernel;
}

const PassKernel& FinishFragmentsFloat64() {
  static const PassKernel kernel =
      FinishKernel("finish, fp64", reinterpret_cast<const void*>(&FinishFragments<double>));
  return kernel;
}

const PassKernel& FinishFragmentsTf32() {
  static const PassKernel kernel = FinishKernel("finish, tf32", reinterpret_cast<const void*>(&FinishFragments<float>));
  return kernel;
}

}  // namespace flashbob::cuda::mma
