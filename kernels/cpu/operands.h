// Operands: the tensors of one launch, as the passes read and write them.
//
// Plain views of the caller's memory; valid during the launch.
#ifndef FLASHBOB_KERNELS_CPU_OPERANDS_H_
#define FLASHBOB_KERNELS_CPU_OPERANDS_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "kernels/cpu/row_conversion.h"
#include "kernels/cpu/schedule.h"
#include "kernels/cpu/tile_product.h"
#include "kernels/engine.h"

namespace flashbob::cpu {

// A tensor of the problem: null where it is not given or not wanted.
class TensorView {
 public:
  TensorView() = default;
  TensorView(const AttentionProblem& problem, TensorName name, void* data);

  bool present() const { return data_ != nullptr; }
  int64_t columns() const { return columns_; }
  DType dtype() const { return dtype_; }
  // Elements from one row to the next.
  int64_t row_stride() const { return strides_.row; }
  bool contiguous_rows() const { return strides_.row == columns_; }

  // First element of row `row` of sequence b (`start`: rows before it, packed), as raw bytes.
  std::byte* Row(int64_t probe, int64_t b, int64_t start, int64_t head, int64_t row) const {
    const int64_t element =
        probe * strides_.probe + b * strides_.batch + head * strides_.head + (start + row) * strides_.row;
    return data_ + element * element_bytes_;
  }
  int64_t element_bytes() const { return element_bytes_; }

 private:
  std::byte* data_ = nullptr;
  DType dtype_ = DType::kFloat32;
  int64_t element_bytes_ = 0;
  int64_t columns_ = 0;
  Strides strides_;
};

struct Operands {
  // INVALID_ARGUMENT where a tensor that the computation has is null, unless it has no bytes.
  static absl::StatusOr<Operands> Create(const Computation& computation, const Schedule& schedule,
                                         const TensorPointers& tensors);

  TensorView q, k, v, o, lse, d_o;  // inputs; d_o is dO
  TensorView tq, tk, tv, tdo;
  TensorView out_o, out_lse, out_t, out_tlse;  // of the row pass
  TensorView gq, gk, gv;                       // of the column pass
};

// Rows of one head of one sequence of a tensor.
struct RowBlock {
  int64_t probe = 0;
  int64_t b = 0;
  int64_t start = 0;  // AttentionProblem::SequenceStart of the tensor
  int64_t head = 0;
  IndexRange rows;
};

// The block as a matrix: where the tensor holds Reals in contiguous rows, in place; else converted into `scratch`.
template <typename Real>
Matrix<const Real> Load(const TensorView& tensor, const RowBlock& block, Real* scratch) {
  const std::byte* row = tensor.Row(block.probe, block.b, block.start, block.head, block.rows.begin);
  const int64_t columns = tensor.columns();
  if (tensor.contiguous_rows()) {
    if (tensor.element_bytes() == sizeof(Real)) return {reinterpret_cast<const Real*>(row), columns};
    Widen(tensor.dtype(), row, block.rows.size() * columns, scratch);
    return {scratch, columns};
  }
  const int64_t row_bytes = tensor.row_stride() * tensor.element_bytes();
  for (int64_t i = 0; i < block.rows.size(); ++i, row += row_bytes) {
    Widen(tensor.dtype(), row, columns, scratch + i * columns);
  }
  return {scratch, columns};
}

// Writes the block from a matrix, rounding to the tensor's dtype.
template <typename Real>
void Store(const TensorView& tensor, const RowBlock& block, Matrix<const Real> source) {
  std::byte* row = tensor.Row(block.probe, block.b, block.start, block.head, block.rows.begin);
  const int64_t columns = tensor.columns();
  const int64_t row_bytes = tensor.row_stride() * tensor.element_bytes();
  for (int64_t i = 0; i < block.rows.size(); ++i, row += row_bytes) {
    Narrow(tensor.dtype(), source.data + i * source.stride, columns, row);
  }
}

void StoreZeros(const TensorView& tensor, const RowBlock& block);

}  // namespace flashbob::cpu

#endif  // FLASHBOB_KERNELS_CPU_OPERANDS_H_
