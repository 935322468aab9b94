// The column pass: one task takes a block of keys of one kv head through the queries that see it: for each query head
// of the group, its query blocks from top to bottom.
//
// For each tile: S = tau Q K^T, P = exp(S - L), dP = dO V^T, Z = P . (dP - D), and for each probe
//   G = tau (tQ K^T + Q tK^T)      W = dO tV^T + tdO V^T
//   X = P . (G - c)                Y = X . (dP - D) + P . (W - r)
//   gv += X^T dO + P^T tdO         gk += tau (Y^T Q + Z^T tQ)         gq += tau (Y K + Z tK)
// The backward is the same with P for X and Z for Y, and nothing else. What is not given or not wanted is left out.
// gk and gv are the task's own; to gq the tasks of a head add one after the other, in the order of keys.
#include <algorithm>
#include <limits>
#include <thread>

#include "kernels/cpu/passes.h"

namespace flashbob::cpu {
namespace {

// Waits until `progress` has passed `step`.
void WaitFor(const Progress& progress, int64_t step) {
  constexpr int kSpins = 256;
  for (int spin = 0; progress.steps.load(std::memory_order_acquire) <= step; ++spin) {
    if (spin < kSpins) {
      __builtin_ia32_pause();
    } else {
      std::this_thread::yield();
    }
  }
}

template <typename Real>
class ColumnTask {
 public:
  ColumnTask(const PassContext<Real>& context, int64_t task_in_wave, int thread)
      : context_(context),
        plan_(context.plan),
        schedule_(plan_.schedule()),
        problem_(plan_.problem()),
        in_(context.operands),
        tau_(static_cast<Real>(problem_.scale())),
        task_(plan_.column_grid().At(context.slice.work.wave.first_task + task_in_wave)),
        mask_(problem_.mask(task_.b)),
        scratch_carver_(context.workspace + plan_.map().scratch +
                        plan_.map().scratch_stride * static_cast<size_t>(thread)),
        scratch_(scratch_carver_, plan_),
        sums_(scratch_.sums) {
    if (context.slice.work.wave.split()) {
      Carver carver(context.workspace + plan_.map().sums + plan_.map().sums_stride * static_cast<size_t>(task_in_wave));
      sums_ = ColumnSums<Real>(carver, plan_);
    }
    query_start_ = problem_.SequenceStart(TensorName::kQ, task_.b);
    key_start_ = problem_.SequenceStart(TensorName::kK, task_.b);
    auto* progress = context.template Part<Progress>(plan_.map().progress);
    own_progress_ = progress + task_in_wave;
    run_ = plan_.RunOf(context.slice.work.wave, task_in_wave, task_);
    before_ = run_.follows ? own_progress_ - plan_.column_grid().heads() : nullptr;
  }

  absl::Status Run() {
    const WaveTable::Slice& work = context_.slice.work;
    if (work.first()) ClearSums();
    if (schedule_.column_tiles) VisitTiles(context_.slice.steps);
    if (work.last()) StoreSums();
    own_progress_->steps.store(std::numeric_limits<int64_t>::max(), std::memory_order_release);
    return products_.status();
  }

 private:
  int64_t keys() const { return task_.rows.size(); }
  RowBlock KeyBlock(int64_t probe) const { return {probe, task_.b, key_start_, task_.head, task_.rows}; }
  RowBlock QueryBlock(int64_t probe, int64_t head, IndexRange queries) const {
    return {probe, task_.b, query_start_, head, queries};
  }

  Real* Gk(int64_t slot) const { return sums_.gk + slot * plan_.tile().keys * problem_.head_dim(); }
  Real* Gv(int64_t slot) const { return sums_.gv + slot * plan_.tile().keys * problem_.value_dim(); }

  void ClearSums() {
    for (int64_t slot = 0; slot < context_.slice.probes.size(); ++slot) {
      if (schedule_.gk) std::fill_n(Gk(slot), keys() * problem_.head_dim(), Real{0});
      if (schedule_.gv) std::fill_n(Gv(slot), keys() * problem_.value_dim(), Real{0});
    }
  }

  void StoreSums() {
    const IndexRange probes = context_.slice.probes;
    for (int64_t probe = probes.begin; probe < probes.end; ++probe) {
      const int64_t slot = probe - probes.begin;
      if (schedule_.gk) StoreTransposed(in_.gk, KeyBlock(probe), Gk(slot));
      if (schedule_.gv) StoreTransposed(in_.gv, KeyBlock(probe), Gv(slot));
    }
  }

  void StoreTransposed(const TensorView& tensor, RowBlock block, const Real* sum) const {
    const int64_t width = tensor.columns();
    for (int64_t first = 0; first < keys(); first += kStoredRows) {
      const int64_t count = std::min(kStoredRows, keys() - first);
      for (int64_t x = 0; x < width; ++x) {
        for (int64_t i = 0; i < count; ++i) scratch_.rows[i * width + x] = sum[x * keys() + first + i];
      }
      block.rows = {task_.rows.begin + first, task_.rows.begin + first + count};
      Store(tensor, block, Matrix<const Real>{scratch_.rows, width});
    }
  }

  // Steps count the query blocks that the run of key blocks sees, head after head of the group: the same count for
  // every task of the run, so that a task can wait for the one before it by it. Each key block is a step behind the one
  // before it, so that where a wave is cut across, none has to wait at the start of a slice.
  void VisitTiles(IndexRange steps) {
    const IndexRange blocks = run_.query_blocks;
    const IndexRange own = plan_.QueryBlocksOf(task_.b, task_.rows);
    const int64_t behind = task_.block - run_.key_blocks.begin;
    const int64_t first = std::max<int64_t>(steps.begin - behind, 0);
    const int64_t last = std::min(steps.end - behind, problem_.group() * blocks.size());
    if (first >= last || own.empty()) return;
    k_ = Load(in_.k, KeyBlock(0), scratch_.k);
    if (schedule_.need_z || (schedule_.need_w && schedule_.tdo)) v_ = Load(in_.v, KeyBlock(0), scratch_.v);
    int64_t step = first;
    const auto advance = [&](int64_t steps_done) {
      step += steps_done;
      own_progress_->steps.store(step, std::memory_order_release);
    };
    while (step < last) {
      const int64_t head = task_.head * problem_.group() + step / blocks.size();
      const int64_t block = blocks.begin + step % blocks.size();
      // Under a narrow band most of the run's blocks see none of these keys, and are passed by at once.
      if (block < own.begin || block >= own.end) {
        advance(block < own.begin ? own.begin - block : blocks.end - block);
        continue;
      }
      const IndexRange queries = plan_.row_grid().Rows(task_.b, block);
      if (mask_.Cover(queries, task_.rows) != Coverage::kNone) VisitTile(head, queries, step);
      advance(1);
    }
  }

  void VisitTile(int64_t head, IndexRange queries, int64_t step) {
    const int64_t head_dim = problem_.head_dim();
    const int64_t value_dim = problem_.value_dim();
    const int64_t stride = plan_.tile().stride;
    const RowBlock rows = QueryBlock(0, head, queries);
    const Matrix<const Real> q = Load(in_.q, rows, scratch_.q);
    Matrix<const Real> d_o;
    if (in_.d_o.present()) d_o = Load(in_.d_o, rows, scratch_.d_o);
    const int64_t row = QueryRow(problem_, task_.b, head, queries.begin);

    ColumnTile<Real> tile = {};
    tile.mask = MaskTile(mask_, queries, task_.rows, stride, scratch_.mask_rows);
    tile.p = scratch_.p;
    tile.l = RowArray(plan_.map().l, 0, row);
    products_.Multiply(queries.size(), keys(), head_dim, tau_, AsIs(q), Transposed(k_), Into::kOverwrite,
                       Matrix<Real>{tile.p, stride});
    if (schedule_.need_z) {
      tile.z = scratch_.z;
      tile.d = RowArray(plan_.map().d, 0, row);
      products_.Multiply(queries.size(), keys(), value_dim, Real{1}, AsIs(d_o), Transposed(v_), Into::kOverwrite,
                         Matrix<Real>{tile.z, stride});
    }
    tile.with_p = true;
    const Matrix<const Real> p = {scratch_.p, stride};
    const Matrix<const Real> z = {scratch_.z, stride};
    if (schedule_.first_order) {
      context_.kernels.column_tile(tile);
      if (schedule_.gv) AddToKeys(p, d_o, queries.size(), value_dim, Real{1}, Gv(0));
      if (schedule_.gk) AddToKeys(z, q, queries.size(), head_dim, tau_, Gk(0));
      WaitForTurn(step);
      if (schedule_.gq) AddToQueries(0, head, queries, z, nullptr);
      return;
    }
    const IndexRange probes = context_.slice.probes;
    for (int64_t probe = probes.begin; probe < probes.end; ++probe) {
      const int64_t slot = probe - probes.begin;
      Matrix<const Real> tq;
      Matrix<const Real> tk;
      Matrix<const Real> tdo;
      if (schedule_.tq) tq = Load(in_.tq, QueryBlock(probe, head, queries), scratch_.tq);
      if (schedule_.tk) tk = Load(in_.tk, KeyBlock(probe), scratch_.tk);
      if (schedule_.tdo) tdo = Load(in_.tdo, QueryBlock(probe, head, queries), scratch_.tdo);

      if (scratch_.g != nullptr) {
        tile.g = scratch_.g;
        tile.c = RowArray(plan_.map().c, slot, row);
        Scores(queries.size(), head_dim, tau_, schedule_.tq ? &tq : nullptr, k_, schedule_.tk ? &q : nullptr, tk,
               tile.g);
      }
      if (schedule_.need_y) {
        tile.y = scratch_.w;
        tile.r = RowArray(plan_.map().r, slot, row);
      }
      if (schedule_.need_w) {
        Matrix<const Real> tv;
        if (schedule_.tv) tv = Load(in_.tv, KeyBlock(probe), scratch_.tv);
        tile.w = scratch_.w;
        Scores(queries.size(), value_dim, Real{1}, schedule_.tv ? &d_o : nullptr, tv, schedule_.tdo ? &tdo : nullptr,
               v_, tile.w);
      }
      context_.kernels.column_tile(tile);
      tile.with_p = false;

      if (schedule_.need_x) AddToKeys({scratch_.g, stride}, d_o, queries.size(), value_dim, Real{1}, Gv(slot));
      if (schedule_.gv && schedule_.tdo) AddToKeys(p, tdo, queries.size(), value_dim, Real{1}, Gv(slot));
      if (!schedule_.need_y) continue;
      const Matrix<const Real> y = {scratch_.w, stride};
      if (schedule_.gk) {
        AddToKeys(y, q, queries.size(), head_dim, tau_, Gk(slot));
        if (schedule_.tq) AddToKeys(z, tq, queries.size(), head_dim, tau_, Gk(slot));
      }
      if (schedule_.gq) {
        WaitForTurn(step);
        AddToQueries(probe, head, queries, y, schedule_.tk ? &tk : nullptr);
      }
    }
  }

  // tile := factor * (a x^T + b y^T), of which a or b may be left out.
  void Scores(int64_t queries, int64_t depth, Real factor, const Matrix<const Real>* a, Matrix<const Real> x,
              const Matrix<const Real>* b, Matrix<const Real> y, Real* tile) {
    const Matrix<Real> result = {tile, plan_.tile().stride};
    Into into = Into::kOverwrite;
    if (a != nullptr) {
      products_.Multiply(queries, keys(), depth, factor, AsIs(*a), Transposed(x), into, result);
      into = Into::kAccumulate;
    }
    if (b != nullptr) {
      products_.Multiply(queries, keys(), depth, factor, AsIs(*b), Transposed(y), into, result);
    }
  }

  // sum^T += factor * rows^T tile
  void AddToKeys(Matrix<const Real> tile, Matrix<const Real> rows, int64_t queries, int64_t width, Real factor,
                 Real* sum) {
    products_.Multiply(width, keys(), queries, factor, Transposed(rows), AsIs(tile), Into::kAccumulate,
                       Matrix<Real>{sum, keys()});
  }

  void WaitForTurn(int64_t step) const {
    if (schedule_.gq && before_ != nullptr) WaitFor(*before_, step);
  }

  // gq += tau (tile K + Z tK): straight into the output where that holds Reals, else into the workspace, and from there
  // into the output once the last key block has added its share.
  void AddToQueries(int64_t probe, int64_t head, IndexRange queries, Matrix<const Real> tile,
                    const Matrix<const Real>* tk) {
    const int64_t head_dim = problem_.head_dim();
    const IndexRange blocks = plan_.KeyBlocksOf(task_.b, queries);
    const RowBlock rows = QueryBlock(probe, head, queries);
    const bool in_place = in_.gq.element_bytes() == sizeof(Real);
    Matrix<Real> sum;
    if (in_place) {
      sum = {reinterpret_cast<Real*>(in_.gq.Row(probe, task_.b, query_start_, head, queries.begin)),
             in_.gq.row_stride()};
    } else {
      const int64_t slot = probe - context_.slice.probes.begin;
      const int64_t row =
          slot * problem_.heads() * problem_.total_queries() + QueryRow(problem_, task_.b, head, queries.begin);
      sum = {context_.template Part<Real>(plan_.map().gq) + row * head_dim, head_dim};
    }
    const Into into = task_.block == blocks.begin ? Into::kOverwrite : Into::kAccumulate;
    products_.Multiply(queries.size(), head_dim, keys(), tau_, AsIs(tile), AsIs(k_), into, sum);
    if (tk != nullptr && schedule_.need_z) {
      products_.Multiply(queries.size(), head_dim, keys(), tau_, AsIs(Matrix<const Real>{scratch_.z, tile.stride}),
                         AsIs(*tk), Into::kAccumulate, sum);
    }
    if (!in_place && task_.block == blocks.end - 1) Store(in_.gq, rows, Matrix<const Real>{sum.data, sum.stride});
  }

  Real* RowArray(size_t offset, int64_t slot, int64_t row) const {
    return context_.template Part<Real>(offset) + slot * problem_.heads() * problem_.total_queries() + row;
  }

  const PassContext<Real>& context_;
  const CpuPlan& plan_;
  const Schedule& schedule_;
  const AttentionProblem& problem_;
  const Operands& in_;
  const Real tau_;
  const TaskGrid::Task task_;
  const BandMask mask_;
  Carver scratch_carver_;
  const ColumnScratch<Real> scratch_;
  ColumnSums<Real> sums_;
  int64_t query_start_ = 0;
  int64_t key_start_ = 0;
  CpuPlan::Run run_;
  Progress* own_progress_ = nullptr;
  const Progress* before_ = nullptr;  // of the key block before, where that is in the same slice
  Matrix<const Real> k_;
  Matrix<const Real> v_;
  TileProducts products_;
};

}  // namespace

template <typename Real>
absl::Status RunColumnTask(const PassContext<Real>& context, int64_t task_in_wave, int thread) {
  return ColumnTask<Real>(context, task_in_wave, thread).Run();
}

template absl::Status RunColumnTask(const PassContext<float>& context, int64_t task_in_wave, int thread);
template absl::Status RunColumnTask(const PassContext<double>& context, int64_t task_in_wave, int thread);

}  // namespace flashbob::cpu
