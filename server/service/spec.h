// The spec of a Compute call, checked and turned into a Computation.
#ifndef FLASHBOB_SERVER_SERVICE_SPEC_H_
#define FLASHBOB_SERVER_SERVICE_SPEC_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "flashbob/v1/attention_service.pb.h"
#include "kernels/computation.h"
#include "server/base/clock.h"

namespace flashbob::server {

// Most sequences in one packed batch: Limits.max_sequences.
inline constexpr int64_t kMaxSequences = 65536;
// Most query heads over all batch entries, or sequences, of one call: Limits.max_heads. An engine plans each of them,
// and a plan is made while a client waits for its first answer.
inline constexpr int64_t kMaxHeads = int64_t{1} << 20;
inline constexpr size_t kMaxRequestIdBytes = 128;
// Most bytes of outputs within a result: a small tensor and its lse. Of 128 KiB 64 clients got a seventh less.
inline constexpr int64_t kMaxBytesWithinResult = int64_t{72} << 10;

// OK where `id` is empty or at most kMaxRequestIdBytes of printable ASCII.
absl::Status CheckRequestId(const std::string& id);

// The operation that a spec names.
absl::StatusOr<Operation> OperationOf(const v1::ComputeSpec& spec);

struct ParsedSpec {
  Computation computation;
  std::vector<TensorName> inputs;             // in the order that chunks refer to
  std::vector<std::string> handles;           // of those that lie in the store; empty for the others
  std::vector<TensorName> outputs;            // as inputs, of the result
  std::vector<std::optional<Duration>> keep;  // for those that stay in the store: the lease asked for
  bool brief_answer = false;
};

// Everything that can be refused without knowing device or memory is refused here: BAD_SPEC for what is wrong,
// UNSUPPORTED_PROBLEM for what is valid but not served, TOO_LARGE for too many sequences.
absl::StatusOr<ParsedSpec> ParseSpec(const v1::ComputeSpec& spec);

// The tensors that a spec wants to store; BAD_SPEC for what is wrong.
absl::StatusOr<std::vector<TensorInfo>> ParseTensors(const v1::PutTensorsSpec& spec);

// Bytes of a tensor that ParseTensors has checked.
int64_t BytesOf(const TensorInfo& info);

// The wire's names of what kernels/ knows.
v1::Operation ToProto(Operation operation);
v1::DataType ToProto(DType dtype);
v1::Layout ToProto(Layout layout);
v1::TensorName ToProto(TensorName name);
// A tensor of a problem, without its bytes.
v1::TensorSpec ToProto(const AttentionProblem& problem, TensorName name);
v1::TensorSpec ToProto(const TensorInfo& info);

}  // namespace flashbob::server

#endif  // FLASHBOB_SERVER_SERVICE_SPEC_H_
