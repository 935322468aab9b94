#include "kernels/cpu/passes.h"

#include <algorithm>

namespace flashbob::cpu {
namespace {

// Sizes that the layouts share.
template <typename Real>
struct Extents {
  explicit Extents(const CpuPlan& plan)
      : queries(plan.tile().queries),
        keys(plan.tile().keys),
        tile(plan.tile().queries * plan.tile().stride),
        head_dim(plan.problem().head_dim()),
        value_dim(plan.problem().value_dim()),
        probes(plan.max_group_probes()) {
    const AttentionProblem& problem = plan.problem();
    const bool in_place = SizeOf(problem.dtype()) == sizeof(Real) &&
                          problem.StridesOf(TensorName::kQ).row == head_dim &&
                          problem.StridesOf(TensorName::kK).row == head_dim;
    copies = in_place ? 0 : 1;
  }

  int64_t queries;
  int64_t keys;
  int64_t tile;
  int64_t head_dim;
  int64_t value_dim;
  int64_t probes;
  int64_t copies;  // 1 where tensors have to be converted or gathered, else 0
};

}  // namespace

MaskRows::MaskRows(Carver& carver, const CpuPlan& plan)
    : begin(carver.Take<int32_t>(plan.tile().queries)),
      end(carver.Take<int32_t>(plan.tile().queries)),
      alone(carver.Take<uint8_t>(plan.tile().queries)) {}

template <typename Real>
RowSums<Real>::RowSums(Carver& carver, const CpuPlan& plan) {
  const Extents<Real> n(plan);
  const Schedule& schedule = plan.schedule();
  m = carver.Take<Real>(n.queries);
  l = carver.Take<Real>(n.queries);
  o = carver.Take<Real>(schedule.sum_o * n.queries * n.value_dim);
  c = carver.Take<Real>(schedule.sum_c * n.probes * n.queries);
  t = carver.Take<Real>(schedule.sum_t * n.probes * n.queries * n.value_dim);
}

template <typename Real>
ColumnSums<Real>::ColumnSums(Carver& carver, const CpuPlan& plan) {
  const Extents<Real> n(plan);
  const Schedule& schedule = plan.schedule();
  gk = carver.Take<Real>(schedule.gk * n.probes * n.keys * n.head_dim);
  gv = carver.Take<Real>(schedule.gv * n.probes * n.keys * n.value_dim);
}

template <typename Real>
RowScratch<Real>::RowScratch(Carver& carver, const CpuPlan& plan) : mask_rows(carver, plan), sums(carver, plan) {
  const Extents<Real> n(plan);
  const Schedule& schedule = plan.schedule();
  q = carver.Take<Real>(n.copies * n.queries * n.head_dim);
  tq = carver.Take<Real>(n.copies * schedule.tq * n.queries * n.head_dim);
  k = carver.Take<Real>(n.copies * n.keys * n.head_dim);
  tk = carver.Take<Real>(n.copies * schedule.tk * n.keys * n.head_dim);
  v = carver.Take<Real>(n.copies * n.keys * n.value_dim);
  tv = carver.Take<Real>(n.copies * schedule.tv * n.keys * n.value_dim);
  o = carver.Take<Real>(n.copies * n.queries * n.value_dim);
  d_o = carver.Take<Real>(n.copies * n.queries * n.value_dim);
  tdo = carver.Take<Real>(n.copies * schedule.tdo * n.queries * n.value_dim);
  s = carver.Take<Real>(schedule.row_tiles * n.tile);
  g = carver.Take<Real>(schedule.sum_c * n.tile);
  l = carver.Take<Real>(n.queries);
  rescale = carver.Take<Real>(n.queries);
}

template <typename Real>
ColumnScratch<Real>::ColumnScratch(Carver& carver, const CpuPlan& plan) : mask_rows(carver, plan), sums(carver, plan) {
  const Extents<Real> n(plan);
  const Schedule& schedule = plan.schedule();
  const int64_t copies = n.copies * schedule.column_tiles;
  k = carver.Take<Real>(copies * n.keys * n.head_dim);
  tk = carver.Take<Real>(copies * schedule.tk * n.keys * n.head_dim);
  v = carver.Take<Real>(copies * n.keys * n.value_dim);
  tv = carver.Take<Real>(copies * schedule.tv * n.keys * n.value_dim);
  q = carver.Take<Real>(copies * n.queries * n.head_dim);
  tq = carver.Take<Real>(copies * schedule.tq * n.queries * n.head_dim);
  d_o = carver.Take<Real>(copies * n.queries * n.value_dim);
  tdo = carver.Take<Real>(copies * schedule.tdo * n.queries * n.value_dim);
  p = carver.Take<Real>(schedule.column_tiles * n.tile);
  z = carver.Take<Real>(schedule.need_z * n.tile);
  g = carver.Take<Real>((schedule.need_x || schedule.need_z) && schedule.has_g() ? n.tile : 0);
  w = carver.Take<Real>(schedule.need_y * n.tile);
  rows = carver.Take<Real>(kStoredRows * std::max(n.head_dim, n.value_dim));
}

TileMask MaskTile(const BandMask& mask, IndexRange queries, IndexRange keys, int64_t stride, const MaskRows& rows) {
  TileMask tile = {queries.size(), keys.size(), stride, nullptr, nullptr, nullptr};
  if (mask.Cover(queries, keys) == Coverage::kFull && keys.size() > 1) return tile;
  bool any_alone = false;
  for (int64_t i = 0; i < queries.size(); ++i) {
    const IndexRange visible = mask.KeysOf(queries.begin + i);
    rows.begin[i] = static_cast<int32_t>(std::clamp(visible.begin, keys.begin, keys.end) - keys.begin);
    rows.end[i] = static_cast<int32_t>(std::clamp(visible.end, keys.begin, keys.end) - keys.begin);
    rows.alone[i] = visible.size() == 1 && rows.begin[i] < rows.end[i] ? 1 : 0;
    any_alone |= rows.alone[i] != 0;
  }
  tile.begin = rows.begin;
  tile.end = rows.end;
  if (any_alone) tile.alone = rows.alone;
  return tile;
}

int64_t QueryRow(const AttentionProblem& problem, int64_t b, int64_t head, int64_t row) {
  const int64_t start =
      problem.layout() == Layout::kTHD ? problem.SequenceStart(TensorName::kQ, b) : b * problem.query_len(b);
  return head * problem.total_queries() + start + row;
}

template struct RowSums<float>;
template struct RowSums<double>;
template struct ColumnSums<float>;
template struct ColumnSums<double>;
template struct RowScratch<float>;
template struct RowScratch<double>;
template struct ColumnScratch<float>;
template struct ColumnScratch<double>;

}  // namespace flashbob::cpu
