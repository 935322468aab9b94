#include "kernels/problem.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status_macros.h"

namespace flashbob {
namespace {

// No extent and no tensor is larger than this, so that sums over the tensors of a call and the mask's arithmetic on
// indices fit in 63 bits.
constexpr int64_t kMaxExtent = int64_t{1} << 48;
constexpr int64_t kMaxTensorBytes = int64_t{1} << 56;

const TensorInfo* Find(const std::vector<TensorInfo>& tensors, TensorName name) {
  for (const TensorInfo& tensor : tensors) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

// Batch, heads, length and width of q, k or v.
struct Extents {
  int64_t batch;  // 1 in the packed layout
  int64_t heads;
  int64_t length;
  int64_t width;
};

absl::StatusOr<Extents> ExtentsOf(const TensorInfo& tensor, Layout layout) {
  const size_t rank = layout == Layout::kTHD ? 3 : 4;
  const Shape& shape = tensor.shape;
  if (shape.size() != rank) {
    return absl::InvalidArgumentError(absl::StrCat(Name(tensor.name), " has ", shape.size(), " axes, shape ",
                                                   ToString(shape), "; layout ", Name(layout), " needs ", rank));
  }
  for (int64_t extent : shape) {
    if (extent < 0 || extent > kMaxExtent) {
      return absl::InvalidArgumentError(
          absl::StrCat(Name(tensor.name), " has shape ", ToString(shape), "; every extent must be 0 to ", kMaxExtent));
    }
  }
  switch (layout) {
    case Layout::kBHND:
      return Extents{shape[0], shape[1], shape[2], shape[3]};
    case Layout::kBNHD:
      return Extents{shape[0], shape[2], shape[1], shape[3]};
    case Layout::kTHD:
      return Extents{1, shape[1], shape[0], shape[2]};
  }
  return absl::InvalidArgumentError("unknown layout");
}

absl::Status CheckCuSeqlens(const char* name, const std::vector<int64_t>& starts, int64_t total) {
  if (starts.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(name, " is missing; layout THD needs it (B + 1 entries)"));
  }
  if (starts.front() != 0) {
    return absl::InvalidArgumentError(absl::StrCat(name, "[0] is ", starts.front(), "; it must be 0"));
  }
  for (size_t i = 1; i < starts.size(); ++i) {
    if (starts[i] < starts[i - 1]) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, " decreases: entry ", i - 1, " is ", starts[i - 1], ", entry ", i, " is ", starts[i]));
    }
  }
  if (starts.back() != total) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " ends with ", starts.back(), "; the tensors have ", total, " rows"));
  }
  return absl::OkStatus();
}

absl::Status CheckOptions(const ProblemOptions& options) {
  if (options.scale.has_value() && !std::isfinite(*options.scale)) {
    return absl::InvalidArgumentError(absl::StrCat("scale is ", *options.scale, "; it must be finite"));
  }
  if (options.window_left < -1 || options.window_right < -1) {
    return absl::InvalidArgumentError(absl::StrCat("window is (", options.window_left, ", ", options.window_right,
                                                   "); a side is 0 or more, or -1 for open"));
  }
  if (options.probes < 0 || options.probes > kMaxExtent) {
    return absl::InvalidArgumentError(absl::StrCat("probes is ", options.probes, "; it must be 0 to ", kMaxExtent));
  }
  if (options.layout != Layout::kTHD && (!options.cu_seqlens_q.empty() || !options.cu_seqlens_k.empty())) {
    return absl::InvalidArgumentError(
        absl::StrCat("cu_seqlens given with layout ", Name(options.layout), "; only THD is packed"));
  }
  return absl::OkStatus();
}

absl::Status CheckWidth(const char* what, int64_t width) {
  if (width < 1) return absl::InvalidArgumentError(absl::StrCat(what, " is ", width, "; it must be at least 1"));
  if (width > AttentionProblem::kMaxHeadDim) {
    return absl::UnimplementedError(
        absl::StrCat(what, " ", width, " is not served; the nearest that is: ", AttentionProblem::kMaxHeadDim));
  }
  return absl::OkStatus();
}

// The product of a shape and an element size, or nothing where it passes kMaxTensorBytes.
std::optional<int64_t> CheckedBytes(const Shape& shape, int64_t element_bytes) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  int64_t bytes = element_bytes;
  for (int64_t extent : shape) {
    if (extent > kMaxTensorBytes / bytes) return std::nullopt;
    bytes *= extent;
  }
  return bytes;
}

}  // namespace

const char* Name(Layout layout) {
  switch (layout) {
    case Layout::kBHND:
      return "BHND";
    case Layout::kBNHD:
      return "BNHD";
    case Layout::kTHD:
      return "THD";
  }
  return "unknown";
}

std::optional<Layout> ParseLayout(std::string_view name) {
  for (Layout layout : {Layout::kBHND, Layout::kBNHD, Layout::kTHD}) {
    if (name == Name(layout)) return layout;
  }
  return std::nullopt;
}

const char* Name(Alignment alignment) { return alignment == Alignment::kTopLeft ? "top-left" : "bottom-right"; }

std::optional<Alignment> ParseAlignment(std::string_view name) {
  for (Alignment alignment : {Alignment::kTopLeft, Alignment::kBottomRight}) {
    if (name == Name(alignment)) return alignment;
  }
  return std::nullopt;
}

std::string ToString(const Shape& shape) { return absl::StrCat("[", absl::StrJoin(shape, ", "), "]"); }

absl::StatusOr<AttentionProblem> AttentionProblem::FromShapes(const ProblemOptions& options,
                                                              const std::vector<TensorInfo>& tensors) {
  FLASHBOB_RETURN_IF_ERROR(CheckOptions(options));
  const TensorInfo* q = Find(tensors, TensorName::kQ);
  const TensorInfo* k = Find(tensors, TensorName::kK);
  const TensorInfo* v = Find(tensors, TensorName::kV);
  if (q == nullptr || k == nullptr || v == nullptr) {
    return absl::InvalidArgumentError("q, k and v are needed by every operation");
  }
  FLASHBOB_ASSIGN_OR_RETURN(const Extents queries, ExtentsOf(*q, options.layout));
  FLASHBOB_ASSIGN_OR_RETURN(const Extents keys, ExtentsOf(*k, options.layout));
  FLASHBOB_ASSIGN_OR_RETURN(const Extents values, ExtentsOf(*v, options.layout));

  if (queries.heads < 1 || keys.heads < 1 || queries.heads % keys.heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat("q has ", queries.heads, " heads and k has ", keys.heads,
                                                   "; kv heads must divide query heads, both at least 1"));
  }
  FLASHBOB_RETURN_IF_ERROR(CheckWidth("head dim", queries.width));
  FLASHBOB_RETURN_IF_ERROR(CheckWidth("value dim", values.width));

  AttentionProblem problem;
  problem.options_ = options;
  problem.dtype_ = q->dtype;
  problem.heads_ = queries.heads;
  problem.kv_heads_ = keys.heads;
  problem.head_dim_ = queries.width;
  problem.value_dim_ = values.width;
  problem.scale_ = options.scale.value_or(1.0 / std::sqrt(static_cast<double>(queries.width)));
  problem.query_extent_ = problem.total_queries_ = queries.length;
  problem.key_extent_ = problem.total_keys_ = keys.length;
  problem.batch_ = queries.batch;
  if (options.layout == Layout::kTHD) {
    FLASHBOB_RETURN_IF_ERROR(CheckCuSeqlens("cu_seqlens_q", options.cu_seqlens_q, queries.length));
    FLASHBOB_RETURN_IF_ERROR(CheckCuSeqlens("cu_seqlens_k", options.cu_seqlens_k, keys.length));
    if (options.cu_seqlens_q.size() != options.cu_seqlens_k.size()) {
      return absl::InvalidArgumentError(absl::StrCat("cu_seqlens_q has ", options.cu_seqlens_q.size(),
                                                     " entries and cu_seqlens_k ", options.cu_seqlens_k.size(),
                                                     "; they must have as many"));
    }
    problem.batch_ = static_cast<int64_t>(options.cu_seqlens_q.size()) - 1;
  } else {
    if (queries.batch != 0 && std::max(queries.length, keys.length) > kMaxExtent / queries.batch) {
      return absl::InvalidArgumentError(absl::StrCat("q ", flashbob::ToString(q->shape), " and k ",
                                                     flashbob::ToString(k->shape), " have more than ", kMaxExtent,
                                                     " rows"));
    }
    problem.total_queries_ = queries.batch * queries.length;
    problem.total_keys_ = queries.batch * keys.length;
  }
  for (int i = 0; i < kNumTensorNames; ++i) {
    const auto name = static_cast<TensorName>(i);
    const Shape shape = problem.ShapeOf(name);
    if (!CheckedBytes(shape, static_cast<int64_t>(SizeOf(problem.DTypeOf(name)))).has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(Name(name), " would have shape ", flashbob::ToString(shape),
                                                     ", more than ", kMaxTensorBytes, " bytes"));
    }
  }
  for (const TensorInfo& tensor : tensors) FLASHBOB_RETURN_IF_ERROR(problem.Check(tensor));
  return problem;
}

int64_t AttentionProblem::query_len(int64_t b) const {
  if (layout() != Layout::kTHD) return query_extent_;
  const auto i = static_cast<size_t>(b);
  return options_.cu_seqlens_q[i + 1] - options_.cu_seqlens_q[i];
}

int64_t AttentionProblem::key_len(int64_t b) const {
  if (layout() != Layout::kTHD) return key_extent_;
  const auto i = static_cast<size_t>(b);
  return options_.cu_seqlens_k[i + 1] - options_.cu_seqlens_k[i];
}

int64_t AttentionProblem::SequenceStart(TensorName name, int64_t b) const {
  if (layout() != Layout::kTHD) return 0;
  const auto i = static_cast<size_t>(b);
  return IsQuerySide(name) ? options_.cu_seqlens_q[i] : options_.cu_seqlens_k[i];
}

BandMask AttentionProblem::mask(int64_t b) const {
  BandMask mask;
  mask.query_len = query_len(b);
  mask.key_len = key_len(b);
  // A window wider than both lengths together is as good as open; cutting it keeps sums of indices small.
  const int64_t widest = mask.query_len + mask.key_len;
  mask.left = std::min(options_.window_left, widest);
  mask.right = std::min(options_.window_right, widest);
  mask.shift = options_.alignment == Alignment::kBottomRight ? mask.key_len - mask.query_len : 0;
  return mask;
}

double AttentionProblem::VisiblePairs() const {
  double pairs = 0;
  if (layout() == Layout::kTHD) {
    for (int64_t b = 0; b < batch_; ++b) pairs += mask(b).VisiblePairs();
  } else if (batch_ > 0) {
    pairs = static_cast<double>(batch_) * mask(0).VisiblePairs();
  }
  return pairs * static_cast<double>(heads_);
}

Shape AttentionProblem::ShapeOf(TensorName name) const {
  const bool query_side = IsQuerySide(name);
  const int64_t heads = query_side ? heads_ : kv_heads_;
  const int64_t length = query_side ? query_extent_ : key_extent_;
  const Width width = WidthOf(name);
  Shape shape;
  if (HasProbeAxis(name) && options_.probes > 0) shape.push_back(options_.probes);
  if (layout() != Layout::kTHD) shape.push_back(batch_);
  // lse and tlse are [batch, heads, N] and [heads, T] whatever the layout.
  if (layout() == Layout::kBHND || width == Width::kNone) {
    shape.insert(shape.end(), {heads, length});
  } else {
    shape.insert(shape.end(), {length, heads});
  }
  if (width != Width::kNone) shape.push_back(width == Width::kHeadDim ? head_dim_ : value_dim_);
  return shape;
}

DType AttentionProblem::DTypeOf(TensorName name) const {
  return WidthOf(name) == Width::kNone ? StatisticsDType(dtype_) : dtype_;
}

int64_t AttentionProblem::NumElements(TensorName name) const {
  const Shape shape = ShapeOf(name);
  // Beside an extent of 0 the others are not bounded together.
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  int64_t elements = 1;
  for (int64_t extent : shape) elements *= extent;
  return elements;
}

int64_t AttentionProblem::NumBytes(TensorName name) const {
  return NumElements(name) * static_cast<int64_t>(SizeOf(DTypeOf(name)));
}

Strides AttentionProblem::StridesOf(TensorName name) const {
  const bool query_side = IsQuerySide(name);
  const int64_t heads = query_side ? heads_ : kv_heads_;
  const int64_t total = query_side ? total_queries_ : total_keys_;
  const int64_t length = query_side ? query_extent_ : key_extent_;
  const Width width = WidthOf(name);
  const int64_t columns = width == Width::kNone ? 1 : width == Width::kHeadDim ? head_dim_ : value_dim_;
  Strides strides;
  if (NumElements(name) == 0) return strides;
  if (layout() == Layout::kBHND || width == Width::kNone) {
    strides.row = columns;
    strides.head = length * columns;
  } else {
    strides.head = columns;
    strides.row = heads * columns;
  }
  if (layout() != Layout::kTHD) strides.batch = heads * length * columns;
  if (HasProbeAxis(name) && options_.probes > 0) strides.probe = heads * total * columns;
  return strides;
}

absl::Status AttentionProblem::Check(const TensorInfo& tensor) const {
  if (tensor.dtype != DTypeOf(tensor.name)) {
    return absl::InvalidArgumentError(absl::StrCat(Name(tensor.name), " is ", Name(tensor.dtype), "; with q ",
                                                   Name(dtype_), " it must be ", Name(DTypeOf(tensor.name))));
  }
  const Shape expected = ShapeOf(tensor.name);
  if (tensor.shape != expected) {
    return absl::InvalidArgumentError(absl::StrCat(Name(tensor.name), " has shape ", flashbob::ToString(tensor.shape),
                                                   "; q, k, v and the options need ", flashbob::ToString(expected)));
  }
  return absl::OkStatus();
}

std::string AttentionProblem::ToString() const {
  std::string text = absl::StrCat(Name(layout()), " B", batch_, " H", heads_, "/", kv_heads_, " N", query_extent_, "x",
                                  key_extent_, " D", head_dim_, "/", value_dim_, " ", Name(dtype_));
  if (options_.window_left >= 0 || options_.window_right >= 0) {
    absl::StrAppend(&text, " window ", options_.window_left, ",", options_.window_right, " ", Name(options_.alignment));
  }
  if (options_.probes > 0) absl::StrAppend(&text, " P", options_.probes);
  return text;
}

}  // namespace flashbob
