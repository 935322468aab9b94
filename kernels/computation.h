// Computation: one operation on one problem, with the inputs that are given and the outputs that are wanted.
//
// The unit of work of every engine. Validated once, immutable, cheap to copy but for cu_seqlens.
#ifndef FLASHBOB_KERNELS_COMPUTATION_H_
#define FLASHBOB_KERNELS_COMPUTATION_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/problem.h"

namespace flashbob {

enum class Operation : uint8_t { kForward, kBackward, kDoubleBackward, kJvp };
inline constexpr Operation kAllOperations[] = {Operation::kForward, Operation::kBackward, Operation::kDoubleBackward,
                                               Operation::kJvp};
const char* Name(Operation operation);  // "forward", "backward", "double_backward", "jvp"
std::optional<Operation> ParseOperation(std::string_view name);

// Products of the size of the score matrix that a computation needs: `over_head_dim` of them contract or produce the
// head dim, `over_value_dim` the value dim. (math.md, "What it costs".)
struct ProductCount {
  int64_t over_head_dim = 0;
  int64_t over_value_dim = 0;
};

class Computation {
 public:
  // Checks that the inputs are those of the operation (q k v always; o and lse both or neither; for kJvp, `tdo` needs
  // `do`) and fit each other, and that the outputs are among those that the operation gives from these inputs. Empty
  // `outputs` means all of them.
  static absl::StatusOr<Computation> Create(Operation operation, const ProblemOptions& options,
                                            const std::vector<TensorInfo>& inputs, TensorSet outputs);

  // What an operation may take and must take, and what it gives from `inputs`.
  static TensorSet AllowedInputs(Operation operation);
  static TensorSet RequiredInputs(Operation operation);
  static TensorSet OutputsOf(Operation operation, TensorSet inputs);

  Operation operation() const { return operation_; }
  const AttentionProblem& problem() const { return problem_; }
  TensorSet inputs() const { return inputs_; }
  TensorSet outputs() const { return outputs_; }
  bool HasInput(TensorName name) const { return inputs_.Has(name); }
  bool Wants(TensorName name) const { return outputs_.Has(name); }

  // Products as math.md counts them: with left-out cotangents left out, a missing o and lse recomputed (one of each
  // width more), whatever outputs are wanted.
  ProductCount products() const;
  // 2 x visible pairs x (over_head_dim x head_dim + over_value_dim x value_dim).
  double flops() const;
  int64_t input_bytes() const;
  int64_t output_bytes() const;

 private:
  Computation(Operation operation, AttentionProblem problem, TensorSet inputs, TensorSet outputs)
      : operation_(operation), problem_(std::move(problem)), inputs_(inputs), outputs_(outputs) {}

  Operation operation_;
  AttentionProblem problem_;
  TensorSet inputs_;
  TensorSet outputs_;
};

}  // namespace flashbob

#endif  // FLASHBOB_KERNELS_COMPUTATION_H_
