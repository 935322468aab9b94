// ConformanceCase: one computation with the recipe of its random inputs.
//
// A case holds no tensor: inputs are made when it runs, afresh from its seed, and are the same wherever it runs
// (another engine, a server, another day). Immutable once made; share freely.
#ifndef FLASHBOB_KERNELS_CONFORMANCE_CASE_H_
#define FLASHBOB_KERNELS_CONFORMANCE_CASE_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/computation.h"

namespace flashbob::conformance {

// What a case is made from. In the packed layout batch and lengths come from options.cu_seqlens_q and _k.
struct CaseSpec {
  Operation operation = Operation::kForward;
  DType dtype = DType::kFloat32;
  ProblemOptions options;
  std::string mask = "full";  // what tables call its mask
  int64_t batch = 1;
  int64_t heads = 1;
  int64_t kv_heads = 1;
  int64_t query_len = 0;
  int64_t key_len = 0;
  int64_t head_dim = 1;
  int64_t value_dim = 1;
  // Inputs that may be left out (o, lse, cotangents, tangents) and are given; those that must be are given always.
  TensorSet optional_inputs;
  TensorSet outputs;  // empty: all
  // Elements are normal with deviation 1, times this for q: scores then have about this deviation.
  double query_deviation = 1;
  uint64_t seed = 0;
};

class ConformanceCase {
 public:
  static absl::StatusOr<ConformanceCase> Create(const CaseSpec& spec);

  const CaseSpec& spec() const { return spec_; }
  const Computation& computation() const { return computation_; }
  // "BHND B1 H4/2 N65x127 D64/64 ...": AttentionProblem::ToString and what is given.
  const std::string& shape() const { return shape_; }

 private:
  ConformanceCase(CaseSpec spec, Computation computation);

  CaseSpec spec_;
  Computation computation_;
  std::string shape_;
};

// A computation on tensors of the shapes that a spec describes.
absl::StatusOr<Computation> MakeComputation(const CaseSpec& spec);

// Elements of every input, drawn from the case's seed and rounded to their dtype. o and lse, where given, are those of
// the fp64 reference, rounded.
absl::StatusOr<std::map<TensorName, std::vector<double>>> MakeInputs(const ConformanceCase& conformance_case);

}  // namespace flashbob::conformance

#endif  // FLASHBOB_KERNELS_CONFORMANCE_CASE_H_
