// Schedule: what a computation makes the passes do. Products that no wanted output needs are not in it.
//
//   row pass     each row of S from left to right: L and O where they are not given; c; (P . G) V + P tV - c O, which
//   is
//                gdo or to; and what the column pass needs of each row: L, D, c, r
//   column pass  each column of S from top to bottom: dq, dk, dv of the backward, or gq, gk, gv of the double backward,
//                or, equal to these with u = t and tdO beside, tdq, tdk, tdv of the JVP
//
// Plain data. Names: t* are the tangents of the JVP or the cotangents u* of the double backward.
#ifndef FLASHBOB_KERNELS_CPU_SCHEDULE_H_
#define FLASHBOB_KERNELS_CPU_SCHEDULE_H_

#include "kernels/computation.h"

namespace flashbob::cpu {

struct Schedule {
  explicit Schedule(const Computation& computation);

  // Backward: P and Z = P . (dP - D) are what the column pass multiplies. Else X and Y, per probe.
  bool first_order = false;
  // The tangents that are given.
  bool tq = false;
  bool tk = false;
  bool tv = false;
  bool tdo = false;
  bool has_g() const { return tq || tk; }

  // Row pass.
  bool rows = false;       // there is one
  bool row_tiles = false;  // it computes tiles of S (else only what is known without)
  bool online = false;     // L is to be found
  bool sum_o = false;      // P V is summed
  bool sum_t = false;      // (P . G) V + P tV is summed
  bool sum_c = false;      // rowsum(P . G) is summed

  // Column pass.
  bool columns = false;       // there is one
  bool column_tiles = false;  // it computes tiles of S (else it writes zeros)
  bool gq = false;            // which of its outputs are wanted
  bool gk = false;
  bool gv = false;
  bool need_x = false;
  bool need_y = false;
  bool need_z = false;  // and with it dP and D
  bool need_w = false;  // H plus tdO V^T

  // FLOP that a visible pair costs, as executed, with `probes` sets of tangents.
  double RowFlopsPerPair(int64_t head_dim, int64_t value_dim, int64_t probes) const;
  double ColumnFlopsPerPair(int64_t head_dim, int64_t value_dim, int64_t probes) const;

  // The tensors that play each part in this operation.
  TensorName tq_name = TensorName::kTq;
  TensorName tk_name = TensorName::kTk;
  TensorName tv_name = TensorName::kTv;
  TensorName t_name = TensorName::kTo;
  TensorName gq_name = TensorName::kTdq;
  TensorName gk_name = TensorName::kTdk;
  TensorName gv_name = TensorName::kTdv;
};

}  // namespace flashbob::cpu

#endif  // FLASHBOB_KERNELS_CPU_SCHEDULE_H_
