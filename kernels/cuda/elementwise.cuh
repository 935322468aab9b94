// The passes that touch each row once: the row scalars where no rows pass makes them, and gQ's conversion.
//
// The packed layout is one batch entry of all its rows here: rows do not depend on each other.
#ifndef FLASHBOB_KERNELS_CUDA_ELEMENTWISE_CUH_
#define FLASHBOB_KERNELS_CUDA_ELEMENTWISE_CUH_

#include "kernels/cuda/simt/block.cuh"

namespace flashbob::cuda {

inline constexpr int kElementwiseThreads = 256;

// Row number -> (probe, batch, head, row), rows innermost.
struct RowIndex {
  int32_t probe;
  int32_t batch;
  int32_t head;
  int64_t row;
};

__device__ inline RowIndex RowAt(const PassArgs& args, int64_t number) {
  RowIndex at;
  at.row = number % args.query_len;
  number /= args.query_len;
  at.head = static_cast<int32_t>(number % args.heads);
  number /= args.heads;
  at.batch = static_cast<int32_t>(number % args.batch);
  at.probe = static_cast<int32_t>(number / args.batch);
  return at;
}

__device__ inline int64_t RowOffset(const TensorView& view, const RowIndex& at) {
  return RowOffset(view, at.probe, at.batch, at.head, at.row);
}

// r = rowsum(tdo . o), L in the column pass's units, D = c = 0. Sixteen-bit rows: a warp takes a row. Longer types: a
// thread takes a row and sums in the order of the column pass's own products, so that where a row sees one key, and o
// is its v, dP - D is exactly 0.
template <typename T>
__global__ void __launch_bounds__(kElementwiseThreads) RowDots(__grid_constant__ const PassArgs args) {
  using Real = typename simt::RealOf<T>::Type;
  constexpr int kLanes = sizeof(T) == 2 ? 32 : 1;  // threads of a row
  constexpr int kRowsPerCta = kElementwiseThreads / kLanes;
  const int64_t rows = int64_t{args.probes} * args.batch * args.heads * args.query_len;
  const int lane = threadIdx.x % kLanes;
  for (int64_t i = int64_t{blockIdx.x} * kRowsPerCta + threadIdx.x / kLanes; i < rows;
       i += int64_t{gridDim.x} * kRowsPerCta) {
    const RowIndex at = RowAt(args, i);
    RowIndex shared_at = at;  // of tensors without a probe axis
    shared_at.probe = 0;
    const T* tdo = static_cast<const T*>(args.tdo.data) + RowOffset(args.tdo, at);
    const int64_t o_at = RowOffset(args.o, shared_at);
    const auto product = [&](int column, Real sum) {
      const Real o = args.o_is_accumulator
                         ? static_cast<const Real*>(args.o.data)[o_at + column]
                         : static_cast<Real>(simt::ToReal(static_cast<const T*>(args.o.data)[o_at + column]));
      return fma(static_cast<Real>(simt::ToReal(tdo[column])), o, sum);
    };
    Real r = 0;
    if constexpr (kLanes > 1) {
      for (int column = lane; column < args.value_dim; column += kLanes) r = product(column, r);
#pragma unroll
      for (int offset = kLanes / 2; offset > 0; offset /= 2) r += __shfl_xor_sync(0xffffffffu, r, offset);
    } else {
      for (int first = 0; first < args.value_dim; first += simt::kPartial) {
        Real partial = 0;
        for (int column = first; column < first + simt::kPartial && column < args.value_dim; ++column) {
          partial = product(column, partial);
        }
        r += partial;
      }
    }
    if (lane == 0) {
      const Real lse = static_cast<const Real*>(args.lse.data)[RowOffset(args.lse, shared_at)];
      RowScalars<Real> scalars = {0, 0, 0, r};
      scalars.lse = lse == -simt::Infinity<Real>()
                        ? simt::Infinity<Real>()
                        : lse * static_cast<Real>(args.lse_factor) - static_cast<Real>(args.lse_shift);
      static_cast<RowScalars<Real>*>(args.row_scalars.data)[RowOffset(args.row_scalars, at)] = scalars;
    }
  }
}

// gq = scale 2^-power_shift gq_sum, rounded.
template <typename T>
__global__ void __launch_bounds__(kElementwiseThreads) FinishQueries(__grid_constant__ const PassArgs args) {
  using Real = typename simt::RealOf<T>::Type;
  const int64_t rows = int64_t{args.probes} * args.batch * args.heads * args.query_len;
  const int64_t elements = rows * args.head_dim;
  const Real factor = static_cast<Real>(args.scale * exp2(-static_cast<double>(args.power_shift)));
  const int64_t stride = int64_t{gridDim.x} * kElementwiseThreads;
  for (int64_t i = int64_t{blockIdx.x} * kElementwiseThreads + threadIdx.x; i < elements; i += stride) {
    const RowIndex at = RowAt(args, i / args.head_dim);
    const int64_t column = i % args.head_dim;
    const Real sum = static_cast<const Real*>(args.gq_sum.data)[RowOffset(args.gq_sum, at) + column];
    static_cast<T*>(args.gq.data)[RowOffset(args.gq, at) + column] = simt::FromReal<T>(sum * factor);
  }
}

}  // namespace flashbob::cuda

#endif  // FLASHBOB_KERNELS_CUDA_ELEMENTWISE_CUH_
