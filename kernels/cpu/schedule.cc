#include "kernels/cpu/schedule.h"

namespace flashbob::cpu {
namespace {

using enum TensorName;

// What a pair costs beside its products (exponential, loads, stores), in FLOP of products.
constexpr double kElementwiseFlops = 48;

}  // namespace

Schedule::Schedule(const Computation& computation) {
  const Operation operation = computation.operation();
  if (operation == Operation::kDoubleBackward) {
    tq_name = kUq, tk_name = kUk, tv_name = kUv;
    t_name = kGdo, gq_name = kGq, gk_name = kGk, gv_name = kGv;
  } else if (operation == Operation::kBackward) {
    gq_name = kDq, gk_name = kDk, gv_name = kDv;
  }
  first_order = operation == Operation::kBackward;
  tq = computation.HasInput(tq_name);
  tk = computation.HasInput(tk_name);
  tv = computation.HasInput(tv_name);
  tdo = computation.HasInput(kTdo);
  gq = computation.Wants(gq_name);
  gk = computation.Wants(gk_name);
  gv = computation.Wants(gv_name);

  columns = gq || gk || gv;
  if (first_order) {
    need_z = gq || gk;
    column_tiles = columns;
  } else {
    need_x = has_g() && gv;
    need_y = (has_g() || tv || tdo) && (gq || gk);
    need_z = has_g() && (gq || gk);
    need_w = need_y && (tv || tdo);
    column_tiles = need_x || need_y || (tdo && gv);
  }

  sum_t = (has_g() || tv) && (computation.Wants(t_name) || need_y);
  sum_c = has_g() && (sum_t || need_x || need_y || computation.Wants(kTlse));
  const bool want_l = operation == Operation::kForward || sum_t || sum_c || column_tiles;
  online = want_l && !computation.HasInput(kLse);
  const bool want_o = computation.Wants(kO) || (sum_t && has_g()) || need_z || (need_y && tdo);
  sum_o = online && want_o;
  row_tiles = online || sum_t || sum_c;
  // Rows that see no key get their zeros in gq here: no column visits them.
  rows = row_tiles || column_tiles || gq || computation.Wants(t_name) || computation.Wants(kTlse);
}

double Schedule::RowFlopsPerPair(int64_t head_dim, int64_t value_dim, int64_t probes) const {
  if (!row_tiles) return 0;
  const auto n = static_cast<double>(probes);
  const double over_head_dim = 1 + n * (sum_c ? tq + tk : 0);
  const double over_value_dim = sum_o + n * (sum_t ? has_g() + tv : 0);
  return 2 * (over_head_dim * static_cast<double>(head_dim) + over_value_dim * static_cast<double>(value_dim)) +
         kElementwiseFlops * (1 + n * sum_c);
}

double Schedule::ColumnFlopsPerPair(int64_t head_dim, int64_t value_dim, int64_t probes) const {
  if (!column_tiles) return 0;
  double over_head_dim = 1;
  double over_value_dim = need_z;
  double elementwise = 1;
  if (first_order) {
    over_head_dim += gk + gq;
    over_value_dim += gv;
  } else {
    const auto n = static_cast<double>(probes);
    over_head_dim += n * (has_g() ? tq + tk : 0);
    over_head_dim += n * ((need_y ? gk + gq : 0) + (need_z ? (gk && tq) + (gq && tk) : 0));
    over_value_dim += n * ((need_w ? tv + tdo : 0) + need_x + (gv && tdo));
    elementwise += n;
  }
  return 2 * (over_head_dim * static_cast<double>(head_dim) + over_value_dim * static_cast<double>(value_dim)) +
         kElementwiseFlops * elementwise;
}

}  // namespace flashbob::cpu
