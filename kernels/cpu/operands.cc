#include "kernels/cpu/operands.h"

#include <cstring>

#include "absl/strings/str_cat.h"

namespace flashbob::cpu {

TensorView::TensorView(const AttentionProblem& problem, TensorName name, void* data)
    : data_(static_cast<std::byte*>(data)),
      dtype_(problem.DTypeOf(name)),
      element_bytes_(static_cast<int64_t>(SizeOf(problem.DTypeOf(name)))),
      strides_(problem.StridesOf(name)) {
  switch (WidthOf(name)) {
    case Width::kHeadDim:
      columns_ = problem.head_dim();
      break;
    case Width::kValueDim:
      columns_ = problem.value_dim();
      break;
    case Width::kNone:
      columns_ = 1;
      break;
  }
}

absl::StatusOr<Operands> Operands::Create(const Computation& computation, const Schedule& schedule,
                                          const TensorPointers& tensors) {
  using enum TensorName;
  const AttentionProblem& problem = computation.problem();
  TensorSet missing;
  const auto check = [&](TensorName name) {
    if (tensors.Get(name) == nullptr && problem.NumBytes(name) > 0) missing.Add(name);
  };
  computation.inputs().ForEach(check);
  computation.outputs().ForEach(check);
  if (!missing.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("no address for tensor ", missing.ToString()));
  }
  const auto input = [&](TensorName name) {
    return computation.HasInput(name) ? TensorView(problem, name, tensors.Get(name)) : TensorView();
  };
  const auto output = [&](TensorName name) {
    return computation.Wants(name) ? TensorView(problem, name, tensors.Get(name)) : TensorView();
  };
  Operands operands;
  operands.q = input(kQ);
  operands.k = input(kK);
  operands.v = input(kV);
  operands.o = input(kO);
  operands.lse = input(kLse);
  operands.d_o = input(kDo);
  operands.tq = input(schedule.tq_name);
  operands.tk = input(schedule.tk_name);
  operands.tv = input(schedule.tv_name);
  operands.tdo = input(kTdo);
  operands.out_o = output(kO);
  operands.out_lse = output(kLse);
  operands.out_t = output(schedule.t_name);
  operands.out_tlse = output(kTlse);
  operands.gq = output(schedule.gq_name);
  operands.gk = output(schedule.gk_name);
  operands.gv = output(schedule.gv_name);
  return operands;
}

void StoreZeros(const TensorView& tensor, const RowBlock& block) {
  std::byte* row = tensor.Row(block.probe, block.b, block.start, block.head, block.rows.begin);
  const int64_t row_bytes = tensor.row_stride() * tensor.element_bytes();
  const auto bytes = static_cast<size_t>(tensor.columns() * tensor.element_bytes());
  for (int64_t i = 0; i < block.rows.size(); ++i, row += row_bytes) std::memset(row, 0, bytes);
}

}  // namespace flashbob::cpu
