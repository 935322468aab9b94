// The fp64 reference: what every engine is compared with.
//
// States math.md's mask predicate and formulas on its own (formulas.h) and shares nothing with the engines; of
// AttentionProblem it uses extents and options, but neither its strides nor its BandMask. Readable before fast: the
// score matrix is materialised, a few seconds for some heads of 2,048 queries.
//
// Where o and lse are given it uses them as an engine must: P = exp(S - lse), D = rowsum(do . o), and o in c O. A row
// whose lse is -inf counts as one that sees no key. Such inputs should be those of `forward`, rounded; the reference of
// other values is the same formula of them.
#ifndef FLASHBOB_KERNELS_REFERENCE_REFERENCE_H_
#define FLASHBOB_KERNELS_REFERENCE_REFERENCE_H_

#include <map>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/computation.h"

namespace flashbob {

// The elements of an output in the problem's layout.
struct ReferenceTensor {
  std::vector<double> value;
  std::vector<double> abs;  // the same formula with every factor and every term replaced by its absolute value
};

struct ReferenceResult {
  std::map<TensorName, ReferenceTensor> outputs;  // the computation's wanted ones
  double max_abs_score = 0;                       // the largest |S| of a visible pair
};

struct ReferenceOptions {
  // Where set: P, P.G, X, Y and Z are rounded to it before their products, and the outputs (o among them; lse and tlse
  // to its statistics type). A recomputed o is not: engines keep it in fp32. Sums are in fp64 all the same.
  std::optional<DType> rounding;
  int threads = 0;  // heads at a time; 0: as many as there are cores
};

// The computation's wanted outputs. `inputs` holds the elements of each of its inputs in the problem's layout;
// INVALID_ARGUMENT with the numbers where one is missing or of another size.
absl::StatusOr<ReferenceResult> ComputeReference(const Computation& computation,
                                                 const std::map<TensorName, std::vector<double>>& inputs,
                                                 const ReferenceOptions& options = {});

}  // namespace flashbob

#endif  // FLASHBOB_KERNELS_REFERENCE_REFERENCE_H_
