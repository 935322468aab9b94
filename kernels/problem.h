// AttentionProblem: one attention problem, validated once, immutable.
//
// Whatever accepts work (server, CLI, tests) describes tensors by TensorInfo and options by ProblemOptions;
// `AttentionProblem::FromShapes` refuses what no engine can serve, with the numbers that were wrong, before any byte
// of a tensor is accepted. Thread safety: const throughout; share freely.
#ifndef FLASHBOB_KERNELS_PROBLEM_H_
#define FLASHBOB_KERNELS_PROBLEM_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/dtype.h"
#include "kernels/mask.h"
#include "kernels/tensor_name.h"

namespace flashbob {

// Order of the axes; proto/flashbob/v1/tensor.proto.
enum class Layout : uint8_t {
  kBHND,  // [batch, heads, N, D]
  kBNHD,  // [batch, N, heads, D]
  kTHD,   // [total tokens, heads, D], sequences packed one after the other
};
const char* Name(Layout layout);  // "BHND", "BNHD", "THD"
std::optional<Layout> ParseLayout(std::string_view name);

// Which corner the mask's diagonal starts from; differs only where query and key lengths do.
enum class Alignment : uint8_t { kTopLeft, kBottomRight };
const char* Name(Alignment alignment);  // "top-left", "bottom-right"
std::optional<Alignment> ParseAlignment(std::string_view name);

// What the shapes of q, k and v do not say.
struct ProblemOptions {
  Layout layout = Layout::kBHND;
  std::optional<double> scale;  // of the softmax; absent: 1 / sqrt(head dim)
  int64_t window_left = -1;     // keys to the left of the diagonal, -1 open
  int64_t window_right = -1;    // to the right; 0 is causal
  Alignment alignment = Alignment::kTopLeft;
  int64_t probes = 0;                 // 0: no probe axis
  std::vector<int64_t> cu_seqlens_q;  // kTHD only: B + 1 starts, first 0, never decreasing, last T_q
  std::vector<int64_t> cu_seqlens_k;
  bool deterministic = false;  // same bits from run to run
  bool allow_tf32 = false;     // fp32 factors may be rounded to TF32
};

using Shape = std::vector<int64_t>;
std::string ToString(const Shape& shape);  // "[1, 4, 2048, 64]"

// A tensor without its bytes.
struct TensorInfo {
  TensorName name;
  DType dtype;
  Shape shape;
};

// Where the elements of a tensor lie, in elements; the innermost axis is contiguous. Element (probe p, batch b, head h,
// row n, column x) is at p * probe + b * batch + h * head + n * row + x. In the packed layout `batch` is 0 and the
// first row of sequence b is added to n instead (AttentionProblem::SequenceStart).
struct Strides {
  int64_t probe = 0;
  int64_t batch = 0;
  int64_t head = 0;
  int64_t row = 0;
};

class AttentionProblem {
 public:
  // Derives batch, heads, lengths and dims from the shapes of q, k and v, which must be among `tensors`; every other
  // tensor there is checked against the result. INVALID_ARGUMENT for what contradicts itself, UNIMPLEMENTED for what is
  // valid but served by no engine (head or value dim above kMaxHeadDim).
  static absl::StatusOr<AttentionProblem> FromShapes(const ProblemOptions& options,
                                                     const std::vector<TensorInfo>& tensors);

  static constexpr int64_t kMaxHeadDim = 256;

  DType dtype() const { return dtype_; }
  Layout layout() const { return options_.layout; }
  double scale() const { return scale_; }
  // P where there is a probe axis; 0 where there is none.
  int64_t probes() const { return options_.probes; }
  // Sets of cotangents or tangents: P, or 1 where there is no probe axis.
  int64_t probe_count() const { return options_.probes == 0 ? 1 : options_.probes; }
  bool deterministic() const { return options_.deterministic; }
  bool allow_tf32() const { return options_.allow_tf32; }

  int64_t batch() const { return batch_; }  // packed: number of sequences
  int64_t heads() const { return heads_; }
  int64_t kv_heads() const { return kv_heads_; }
  int64_t group() const { return heads_ / kv_heads_; }  // query heads that share a kv head
  int64_t head_dim() const { return head_dim_; }
  int64_t value_dim() const { return value_dim_; }

  // Lengths of sequence b (in the batched layouts every one is the same).
  int64_t query_len(int64_t b) const;
  int64_t key_len(int64_t b) const;
  // Rows before sequence b in the packed layout; 0 in the batched ones.
  int64_t SequenceStart(TensorName name, int64_t b) const;
  // Rows over all sequences: batch * N, or T. Per head.
  int64_t total_queries() const { return total_queries_; }
  int64_t total_keys() const { return total_keys_; }

  // The mask of sequence b.
  BandMask mask(int64_t b) const;
  // Pairs (query, key) that are visible, over all sequences and query heads.
  double VisiblePairs() const;

  // Extents of a tensor of this problem, outermost first, with its probe axis where there is one.
  Shape ShapeOf(TensorName name) const;
  DType DTypeOf(TensorName name) const;
  int64_t NumElements(TensorName name) const;  // fits in 63 bits together with the element size
  int64_t NumBytes(TensorName name) const;
  Strides StridesOf(TensorName name) const;

  // INVALID_ARGUMENT where dtype or shape differ from what this problem needs.
  absl::Status Check(const TensorInfo& tensor) const;

  const ProblemOptions& options() const { return options_; }
  // One line for logs: "B2 H8/2 N4096 D64 bf16 causal".
  std::string ToString() const;

 private:
  AttentionProblem() = default;

  ProblemOptions options_;
  DType dtype_ = DType::kFloat32;
  double scale_ = 1;
  int64_t batch_ = 0;
  int64_t heads_ = 0;
  int64_t kv_heads_ = 0;
  int64_t head_dim_ = 0;
  int64_t value_dim_ = 0;
  int64_t query_extent_ = 0;  // of the axis in the shapes: N, also where batch is 0, or T
  int64_t key_extent_ = 0;
  int64_t total_queries_ = 0;
  int64_t total_keys_ = 0;
};

}  // namespace flashbob

#endif  // FLASHBOB_KERNELS_PROBLEM_H_
