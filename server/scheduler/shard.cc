#include "server/scheduler/shard.h"

#include <algorithm>

namespace flashbob::server {
namespace {

int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

// An axis of a tensor: elements from one entry to the next.
struct Axis {
  int64_t extent;
  int64_t stride;
};

// Outermost first, without axes of one entry, and those as one that lie as one axis would.
std::vector<Axis> Merged(const std::vector<Axis>& axes) {
  std::vector<Axis> merged;
  for (const Axis& axis : axes) {
    if (axis.extent == 1) continue;
    if (!merged.empty() && merged.back().stride == axis.extent * axis.stride) {
      merged.back() = {merged.back().extent * axis.extent, axis.stride};
    } else {
      merged.push_back(axis);
    }
  }
  return merged;
}

}  // namespace

std::vector<Shard> CutIntoShards(const AttentionProblem& problem, int most) {
  const int64_t batch = problem.batch();
  const int64_t heads = problem.kv_heads();
  const bool packed = problem.layout() == Layout::kTHD;
  int64_t batch_parts = 1;
  int64_t head_parts = 1;
  int64_t largest = batch * heads;
  // Of cuts that are as good, the one along the batch: its shards' bytes lie in one piece.
  for (int64_t along_batch = packed ? 1 : std::min<int64_t>(most, batch); along_batch >= 1; --along_batch) {
    const int64_t along_heads = std::min(most / along_batch, heads);
    const int64_t size = CeilDivide(batch, along_batch) * CeilDivide(heads, along_heads);
    if (size >= largest) continue;
    largest = size;
    batch_parts = along_batch;
    head_parts = along_heads;
  }
  std::vector<Shard> shards;
  for (int64_t b = 0; b < batch_parts; ++b) {
    const int64_t first_batch = batch * b / batch_parts;
    const int64_t batches = batch * (b + 1) / batch_parts - first_batch;
    for (int64_t h = 0; h < head_parts; ++h) {
      const int64_t first_head = heads * h / head_parts;
      shards.push_back({first_batch, batches, first_head, heads * (h + 1) / head_parts - first_head});
    }
  }
  return shards;
}

absl::StatusOr<Computation> ComputationOf(const Computation& whole, const Shard& shard) {
  const AttentionProblem& problem = whole.problem();
  std::vector<TensorInfo> inputs;
  whole.inputs().ForEach([&](TensorName name) {
    TensorInfo info{name, problem.DTypeOf(name), problem.ShapeOf(name)};
    const bool has_probes = HasProbeAxis(name) && problem.probes() > 0;
    const bool has_batch = problem.layout() != Layout::kTHD;
    const size_t batch_axis = has_probes ? 1 : 0;
    const bool heads_first = problem.layout() == Layout::kBHND || WidthOf(name) == Width::kNone;
    const size_t head_axis = batch_axis + (has_batch ? 1 : 0) + (heads_first ? 0 : 1);
    if (has_batch) info.shape[batch_axis] = shard.batches;
    info.shape[head_axis] = shard.kv_heads * (IsQuerySide(name) ? problem.group() : 1);
    inputs.push_back(std::move(info));
  });
  return Computation::Create(whole.operation(), problem.options(), inputs, whole.outputs());
}

std::vector<ByteRows> RowsOf(const AttentionProblem& whole, const Shard& shard, TensorName name) {
  if (whole.NumElements(name) == 0 || shard.batches == 0 || shard.kv_heads == 0) return {};
  const int64_t bytes = static_cast<int64_t>(SizeOf(whole.DTypeOf(name)));
  const Strides strides = whole.StridesOf(name);
  const int64_t group = IsQuerySide(name) ? whole.group() : 1;
  const bool packed = whole.layout() == Layout::kTHD;
  const Shape shape = whole.ShapeOf(name);
  const bool has_width = WidthOf(name) != Width::kNone;
  const bool heads_first = whole.layout() == Layout::kBHND || !has_width;
  // The axes of a tensor end with heads, length, width or length, heads, width.
  const size_t last = shape.size() - (has_width ? 2 : 1);
  const Axis heads = {shard.kv_heads * group, strides.head};
  const Axis length = {shape[heads_first ? last : last - 1], strides.row};
  std::vector<Axis> axes;
  if (HasProbeAxis(name) && whole.probes() > 0) axes.push_back({whole.probes(), strides.probe});
  if (!packed) axes.push_back({shard.batches, strides.batch});
  axes.push_back(heads_first ? heads : length);
  axes.push_back(heads_first ? length : heads);
  if (has_width) axes.push_back({shape.back(), 1});
  axes = Merged(axes);

  int64_t row = 1;
  if (!axes.empty() && axes.back().stride == 1) {
    row = axes.back().extent;
    axes.pop_back();
  }
  Axis rows = {1, row};
  if (!axes.empty()) {
    rows = axes.back();
    axes.pop_back();
  }
  const int64_t first = shard.first_batch * strides.batch + shard.first_kv_head * group * strides.head;
  std::vector<ByteRows> found = {{first * bytes, row * bytes, rows.extent, rows.stride * bytes}};
  for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
    const std::vector<ByteRows> inner = std::move(found);
    found.clear();
    for (int64_t i = 0; i < axis->extent; ++i) {
      for (ByteRows block : inner) {
        block.offset += i * axis->stride * bytes;
        found.push_back(block);
      }
    }
  }
  return found;
}

}  // namespace flashbob::server
