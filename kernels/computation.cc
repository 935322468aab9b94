#include "kernels/computation.h"

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace flashbob {
namespace {

using enum TensorName;

constexpr TensorSet kPrimals = {kQ, kK, kV};
constexpr TensorSet kForwardResults = {kO, kLse};
constexpr TensorSet kCotangents = {kUq, kUk, kUv};
constexpr TensorSet kTangents = {kTq, kTk, kTv};

}  // namespace

const char* Name(Operation operation) {
  switch (operation) {
    case Operation::kForward:
      return "forward";
    case Operation::kBackward:
      return "backward";
    case Operation::kDoubleBackward:
      return "double_backward";
    case Operation::kJvp:
      return "jvp";
  }
  return "unknown";
}

std::optional<Operation> ParseOperation(std::string_view name) {
  for (Operation operation : kAllOperations) {
    if (name == Name(operation)) return operation;
  }
  return std::nullopt;
}

TensorSet Computation::AllowedInputs(Operation operation) {
  switch (operation) {
    case Operation::kForward:
      return kPrimals;
    case Operation::kBackward:
      return kPrimals | kForwardResults | TensorSet{kDo};
    case Operation::kDoubleBackward:
      return kPrimals | kForwardResults | TensorSet{kDo} | kCotangents;
    case Operation::kJvp:
      return kPrimals | kForwardResults | TensorSet{kDo, kTdo} | kTangents;
  }
  return {};
}

TensorSet Computation::RequiredInputs(Operation operation) {
  const bool needs_do = operation == Operation::kBackward || operation == Operation::kDoubleBackward;
  return needs_do ? kPrimals | TensorSet{kDo} : kPrimals;
}

TensorSet Computation::OutputsOf(Operation operation, TensorSet inputs) {
  switch (operation) {
    case Operation::kForward:
      return kForwardResults;
    case Operation::kBackward:
      return {kDq, kDk, kDv};
    case Operation::kDoubleBackward:
      return {kGq, kGk, kGv, kGdo};
    case Operation::kJvp:
      return inputs.Has(kDo) ? TensorSet{kTo, kTlse, kTdq, kTdk, kTdv} : TensorSet{kTo, kTlse};
  }
  return {};
}

absl::StatusOr<Computation> Computation::Create(Operation operation, const ProblemOptions& options,
                                                const std::vector<TensorInfo>& inputs, TensorSet outputs) {
  TensorSet given;
  for (const TensorInfo& input : inputs) {
    if (given.Has(input.name)) {
      return absl::InvalidArgumentError(absl::StrCat("input ", Name(input.name), " is given twice"));
    }
    given.Add(input.name);
  }
  const TensorSet unknown = given - AllowedInputs(operation);
  if (!unknown.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(Name(operation), " takes no input ", unknown.ToString(),
                                                   "; it takes ", AllowedInputs(operation).ToString()));
  }
  const TensorSet missing = RequiredInputs(operation) - given;
  if (!missing.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(Name(operation), " lacks input ", missing.ToString()));
  }
  if (given.Has(kO) != given.Has(kLse)) {
    return absl::InvalidArgumentError(
        absl::StrCat("o and lse go together; only ", given.Has(kO) ? "o" : "lse", " is given"));
  }
  if (given.Has(kTdo) && !given.Has(kDo)) {
    return absl::InvalidArgumentError("tdo, the tangent of do, is given without do");
  }
  const TensorSet possible = OutputsOf(operation, given);
  const TensorSet impossible = outputs - possible;
  if (!impossible.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(Name(operation), " of ", given.ToString(), " gives no output ",
                                                   impossible.ToString(), "; it gives ", possible.ToString()));
  }
  FLASHBOB_ASSIGN_OR_RETURN(AttentionProblem problem, AttentionProblem::FromShapes(options, inputs));
  return Computation(operation, std::move(problem), given, outputs.empty() ? possible : outputs);
}

ProductCount Computation::products() const {
  if (operation_ == Operation::kForward) return {1, 1};
  const bool recompute = !HasInput(kLse);
  if (operation_ == Operation::kBackward) return {recompute ? 4 : 3, recompute ? 3 : 2};

  // JVP and BoB are one schedule: t stands for u. math.md, "Order 2" and "The other compositions".
  const int64_t probes = problem_.probe_count();
  const int64_t tq = inputs_.HasAny({kUq, kTq}) ? 1 : 0;
  const int64_t tk = inputs_.HasAny({kUk, kTk}) ? 1 : 0;
  const int64_t tv = inputs_.HasAny({kUv, kTv}) ? 1 : 0;
  const int64_t tdo = HasInput(kTdo) ? 1 : 0;
  const int64_t g = tq + tk > 0 ? 1 : 0;
  ProductCount count;
  if (tq + tk + tv + tdo == 0) return count;
  if (recompute) count = {1, 1};
  if (tq + tk + tv > 0) {  // rows pass: S, G; (P . G) V, P tV
    count.over_head_dim += 1 + probes * (tq + tk);
    count.over_value_dim += probes * (g + tv);
  }
  if (HasInput(kDo)) {  // column pass: S, G, Y^T Q, Y K, Z^T tQ, Z tK; dP, H, X^T dO; of tdO: tdO V^T, P^T tdO
    count.over_head_dim += 1 + probes * (2 * (tq + tk) + 2);
    count.over_value_dim += g + probes * (tv + g + 2 * tdo);
  }
  return count;
}

double Computation::flops() const {
  const ProductCount count = products();
  return 2 * problem_.VisiblePairs() *
         (static_cast<double>(count.over_head_dim) * static_cast<double>(problem_.head_dim()) +
          static_cast<double>(count.over_value_dim) * static_cast<double>(problem_.value_dim()));
}

int64_t Computation::input_bytes() const {
  int64_t bytes = 0;
  inputs_.ForEach([&](TensorName name) { bytes += problem_.NumBytes(name); });
  return bytes;
}

int64_t Computation::output_bytes() const {
  int64_t bytes = 0;
  outputs_.ForEach([&](TensorName name) { bytes += problem_.NumBytes(name); });
  return bytes;
}

}  // namespace flashbob
