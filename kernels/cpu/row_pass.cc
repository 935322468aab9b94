// The row pass: one task takes a block of queries of one head through the key blocks that it sees, left to right.
//
//   S = tau Q K^T
//   L not given: m, l of the running softmax, P = exp(S - m), sums rescaled when m rises; else P = exp(S - L)
//   o += P V
//   for each probe: G = tau (tQ K^T + Q tK^T), c += rowsum(P . G), t += (P . G) V + P tV
// and at the end, with 1/l applied: O, L, c, T = t - c O (gdo or to), D = rowsum(dO . O),
// r = rowsum(dO . T) + rowsum(tdO . O), the last in full precision, before T is rounded.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/passes.h"

namespace flashbob::cpu {
namespace {

template <typename Real>
class RowTask {
 public:
  RowTask(const PassContext<Real>& context, int64_t task_in_wave, int thread)
      : context_(context),
        plan_(context.plan),
        schedule_(plan_.schedule()),
        problem_(plan_.problem()),
        in_(context.operands),
        task_(plan_.row_grid().At(context.slice.work.wave.first_task + task_in_wave)),
        mask_(problem_.mask(task_.b)),
        scratch_carver_(context.workspace + plan_.map().scratch +
                        plan_.map().scratch_stride * static_cast<size_t>(thread)),
        scratch_(scratch_carver_, plan_),
        sums_(scratch_.sums) {
    if (context.slice.work.wave.split()) {
      Carver carver(context.workspace + plan_.map().sums + plan_.map().sums_stride * static_cast<size_t>(task_in_wave));
      sums_ = RowSums<Real>(carver, plan_);
    }
    query_start_ = problem_.SequenceStart(TensorName::kQ, task_.b);
    key_start_ = problem_.SequenceStart(TensorName::kK, task_.b);
    kv_head_ = task_.head / problem_.group();
  }

  absl::Status Run() {
    const WaveTable::Slice& work = context_.slice.work;
    if (work.first()) ClearSums();
    if (schedule_.row_tiles) {
      const IndexRange blocks = plan_.KeyBlocksOf(task_.b, task_.rows);
      const IndexRange steps = {context_.slice.steps.begin, std::min(context_.slice.steps.end, blocks.size())};
      if (!steps.empty()) {
        LoadL();
        q_ = Load(in_.q, QueryBlock(0), scratch_.q);
      }
      for (int64_t step = steps.begin; step < steps.end; ++step) {
        VisitTile(plan_.column_grid().Rows(task_.b, blocks.begin + step));
      }
    }
    if (work.last()) Finish();
    return products_.status();
  }

 private:
  int64_t rows() const { return task_.rows.size(); }
  RowBlock QueryBlock(int64_t probe) const { return {probe, task_.b, query_start_, task_.head, task_.rows}; }
  RowBlock KeyBlock(int64_t probe, IndexRange keys) const { return {probe, task_.b, key_start_, kv_head_, keys}; }

  void ClearSums() {
    const int64_t probes = context_.slice.probes.size();
    const int64_t width = problem_.value_dim();
    std::fill_n(sums_.m, rows(), -std::numeric_limits<Real>::infinity());
    std::fill_n(sums_.l, rows(), Real{0});
    if (schedule_.sum_o) std::fill_n(sums_.o, rows() * width, Real{0});
    for (int64_t p = 0; p < probes; ++p) {
      if (schedule_.sum_c) std::fill_n(C(p), rows(), Real{0});
      if (schedule_.sum_t) std::fill_n(T(p), rows() * width, Real{0});
    }
  }

  Real* C(int64_t p) const { return sums_.c + p * plan_.tile().queries; }
  Real* T(int64_t p) const { return sums_.t + p * plan_.tile().queries * problem_.value_dim(); }

  // L as given. A row that sees nothing has L = -inf: as +inf it makes P = 0.
  void LoadL() {
    if (schedule_.online) return;
    const Matrix<const Real> given = Load(in_.lse, QueryBlock(0), scratch_.l);
    for (int64_t i = 0; i < rows(); ++i) scratch_.l[i] = MaskEmptyRow(given.data[i]);
  }
  static Real MaskEmptyRow(Real l) {
    constexpr Real kInfinity = std::numeric_limits<Real>::infinity();
    return l == -kInfinity ? kInfinity : l;
  }

  void VisitTile(IndexRange keys) {
    if (mask_.Cover(task_.rows, keys) == Coverage::kNone) return;
    const int64_t head_dim = problem_.head_dim();
    const int64_t value_dim = problem_.value_dim();
    const auto tau = static_cast<Real>(problem_.scale());
    const int64_t stride = plan_.tile().stride;
    const TileMask mask = MaskTile(mask_, task_.rows, keys, stride, scratch_.mask_rows);
    const Matrix<Real> s = {scratch_.s, stride};
    const Matrix<Real> g = {scratch_.g, stride};
    const Matrix<const Real> p = {scratch_.s, stride};

    const Matrix<const Real> k = Load(in_.k, KeyBlock(0, keys), scratch_.k);
    products_.Multiply(rows(), keys.size(), head_dim, tau, AsIs(q_), Transposed(k), Into::kOverwrite, s);
    bool rescaled = false;
    if (schedule_.online) {
      rescaled = context_.kernels.online_softmax(mask, s.data, sums_.m, sums_.l, scratch_.rescale);
    } else {
      context_.kernels.softmax(mask, s.data, scratch_.l);
      std::fill_n(scratch_.rescale, rows(), Real{1});
    }

    Matrix<const Real> v;
    if (schedule_.sum_o || (schedule_.sum_t && schedule_.has_g())) v = Load(in_.v, KeyBlock(0, keys), scratch_.v);
    const auto add_values = [&](Matrix<const Real> weights, Matrix<const Real> values, Real* sum) {
      products_.Multiply(rows(), value_dim, keys.size(), Real{1}, AsIs(weights), AsIs(values), Into::kAccumulate,
                         Matrix<Real>{sum, value_dim});
    };
    const auto rescale = [&](Real* sum) {
      if (rescaled) context_.kernels.scale_rows(rows(), value_dim, sum, scratch_.rescale);
    };
    if (schedule_.sum_o) {
      rescale(sums_.o);
      add_values(p, v, sums_.o);
    }
    const IndexRange probes = context_.slice.probes;
    for (int64_t probe = probes.begin; probe < probes.end; ++probe) {
      const int64_t slot = probe - probes.begin;
      if (schedule_.sum_c) {
        Into into = Into::kOverwrite;
        if (schedule_.tq) {
          const Matrix<const Real> tq = Load(in_.tq, QueryBlock(probe), scratch_.tq);
          products_.Multiply(rows(), keys.size(), head_dim, tau, AsIs(tq), Transposed(k), into, g);
          into = Into::kAccumulate;
        }
        if (schedule_.tk) {
          const Matrix<const Real> tk = Load(in_.tk, KeyBlock(probe, keys), scratch_.tk);
          products_.Multiply(rows(), keys.size(), head_dim, tau, AsIs(q_), Transposed(tk), into, g);
        }
        context_.kernels.weigh(mask, p.data, g.data, scratch_.rescale, C(slot));
      }
      if (schedule_.sum_t) {
        rescale(T(slot));
        if (schedule_.has_g()) add_values({g.data, g.stride}, v, T(slot));
        if (schedule_.tv) add_values(p, Load(in_.tv, KeyBlock(probe, keys), scratch_.tv), T(slot));
      }
    }
  }

  void Finish() {
    const int64_t value_dim = problem_.value_dim();
    // From running sums to O, L, c.
    Real* const inverse = scratch_.rescale;
    if (schedule_.online) {
      for (int64_t i = 0; i < rows(); ++i) {
        const bool empty = sums_.l[i] == 0;
        inverse[i] = empty ? Real{0} : Real{1} / sums_.l[i];
        sums_.l[i] = empty ? -std::numeric_limits<Real>::infinity() : sums_.m[i] + std::log(sums_.l[i]);
      }
    } else {
      std::fill_n(inverse, rows(), Real{1});
    }
    Matrix<const Real> o;
    if (schedule_.sum_o) {
      context_.kernels.scale_rows(rows(), value_dim, sums_.o, inverse);
      o = {sums_.o, value_dim};
    } else if (in_.o.present()) {
      o = Load(in_.o, QueryBlock(0), scratch_.o);
    }
    if (in_.out_o.present()) Store(in_.out_o, QueryBlock(0), o);
    if (in_.out_lse.present()) Store(in_.out_lse, QueryBlock(0), Matrix<const Real>{sums_.l, 1});

    Matrix<const Real> d_o;
    if (schedule_.need_z || schedule_.need_y) d_o = Load(in_.d_o, QueryBlock(0), scratch_.d_o);
    const IndexRange probes = context_.slice.probes;
    for (int64_t probe = probes.begin; probe < probes.end; ++probe) {
      FinishProbe(probe, inverse, o, d_o);
    }
    KeepForColumnPass(o, d_o);
    const bool in_no_column = !schedule_.column_tiles || plan_.KeyBlocksOf(task_.b, task_.rows).empty();
    if (in_.gq.present() && in_no_column) {
      for (int64_t probe = probes.begin; probe < probes.end; ++probe) StoreZeros(in_.gq, QueryBlock(probe));
    }
  }

  void FinishProbe(int64_t probe, const Real* inverse, Matrix<const Real> o, Matrix<const Real> d_o) {
    const int64_t slot = probe - context_.slice.probes.begin;
    const int64_t value_dim = problem_.value_dim();
    if (schedule_.sum_c) {
      for (int64_t i = 0; i < rows(); ++i) C(slot)[i] *= inverse[i];
    }
    if (schedule_.sum_t) {
      Real* t = T(slot);
      for (int64_t i = 0; i < rows(); ++i, t += value_dim) {
        for (int64_t x = 0; x < value_dim; ++x) t[x] *= inverse[i];
        if (!schedule_.sum_c) continue;
        const Real c = C(slot)[i];
        const Real* o_row = o.data + i * o.stride;
        for (int64_t x = 0; x < value_dim; ++x) t[x] -= c * o_row[x];
      }
    }
    if (in_.out_t.present()) {
      if (schedule_.sum_t) {
        Store(in_.out_t, QueryBlock(probe), Matrix<const Real>{T(slot), value_dim});
      } else {
        StoreZeros(in_.out_t, QueryBlock(probe));
      }
    }
    if (in_.out_tlse.present()) {
      if (schedule_.sum_c) {
        Store(in_.out_tlse, QueryBlock(probe), Matrix<const Real>{C(slot), 1});
      } else {
        StoreZeros(in_.out_tlse, QueryBlock(probe));
      }
    }
    if (schedule_.need_x || (schedule_.need_y && schedule_.sum_c)) {
      std::copy_n(C(slot), rows(), RowArray(plan_.map().c, slot));
    }
    if (schedule_.need_y) {
      Real* r = RowArray(plan_.map().r, slot);
      std::fill_n(r, rows(), Real{0});
      if (schedule_.sum_t) {
        context_.kernels.add_row_dots(rows(), value_dim, d_o.data, d_o.stride, T(slot), value_dim, r);
      }
      if (schedule_.tdo) {
        const Matrix<const Real> tdo = Load(in_.tdo, QueryBlock(probe), scratch_.tdo);
        context_.kernels.add_row_dots(rows(), value_dim, tdo.data, tdo.stride, o.data, o.stride, r);
      }
    }
  }

  void KeepForColumnPass(Matrix<const Real> o, Matrix<const Real> d_o) {
    if (!schedule_.column_tiles) return;
    Real* l = RowArray(plan_.map().l, 0);
    if (schedule_.online) {
      for (int64_t i = 0; i < rows(); ++i) l[i] = MaskEmptyRow(sums_.l[i]);
    } else {
      LoadL();
      std::copy_n(scratch_.l, rows(), l);
    }
    if (schedule_.need_z) {
      Real* d = RowArray(plan_.map().d, 0);
      std::fill_n(d, rows(), Real{0});
      context_.kernels.add_row_dots(rows(), problem_.value_dim(), d_o.data, d_o.stride, o.data, o.stride, d);
    }
  }

  // This task's rows in one of the workspace's per-row arrays.
  Real* RowArray(size_t offset, int64_t slot) const {
    return context_.template Part<Real>(offset) + slot * problem_.heads() * problem_.total_queries() +
           QueryRow(problem_, task_.b, task_.head, task_.rows.begin);
  }

  const PassContext<Real>& context_;
  const CpuPlan& plan_;
  const Schedule& schedule_;
  const AttentionProblem& problem_;
  const Operands& in_;
  const TaskGrid::Task task_;
  const BandMask mask_;
  Carver scratch_carver_;
  const RowScratch<Real> scratch_;
  RowSums<Real> sums_;
  int64_t query_start_ = 0;
  int64_t key_start_ = 0;
  int64_t kv_head_ = 0;
  Matrix<const Real> q_;
  TileProducts products_;
};

}  // namespace

template <typename Real>
absl::Status RunRowTask(const PassContext<Real>& context, int64_t task_in_wave, int thread) {
  return RowTask<Real>(context, task_in_wave, thread).Run();
}

template absl::Status RunRowTask(const PassContext<float>& context, int64_t task_in_wave, int thread);
template absl::Status RunRowTask(const PassContext<double>& context, int64_t task_in_wave, int thread);

}  // namespace flashbob::cpu
