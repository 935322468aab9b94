// The formulas of attention's derivatives on one head, with the score matrix materialised: math.md in code.
//
// Each formula is evaluated twice by the same code: on the tensors themselves, and with every factor and every term
// replaced by its absolute value, which gives an error its scale where a result is zero by cancellation. (math.md, "How
// error is measured".) The exponential is always that of the true scores: P is its own absolute value.
// Pure functions, no state.
#ifndef FLASHBOB_KERNELS_REFERENCE_FORMULAS_H_
#define FLASHBOB_KERNELS_REFERENCE_FORMULAS_H_

#include <Eigen/Core>
#include <cstdint>
#include <map>
#include <optional>

#include "kernels/computation.h"
#include "kernels/dtype.h"
#include "kernels/tensor_name.h"

namespace flashbob::reference {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// Tensors of one head, one probe: rows x width; lse and tlse have one column.
using Tensors = std::map<TensorName, Matrix>;

// What one head's formulas need to know besides tensors.
struct HeadOptions {
  Operation operation = Operation::kForward;
  double scale = 1;
  int64_t window_left = -1;  // -1 open
  int64_t window_right = -1;
  int64_t shift = 0;  // s of math.md: 0, or key length - query length
  // Where set, what is rounded to it: P, P.G, X, Y and Z before their products.
  std::optional<DType> rounding;
};

struct HeadResult {
  Tensors value;
  Tensors abs;
  double max_abs_score = 0;  // of the visible pairs
};

// Every output that the operation gives for one head and one probe. `inputs` has q, k and v, and those of o, lse, do
// and the cotangents or tangents that are given; those that are not count as zeros, o and lse are computed.
HeadResult EvaluateHead(const HeadOptions& options, const Tensors& inputs);

}  // namespace flashbob::reference

#endif  // FLASHBOB_KERNELS_REFERENCE_FORMULAS_H_
