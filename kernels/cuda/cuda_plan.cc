#include "kernels/cuda/cuda_plan.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/hopper/launch.h"
#include "kernels/cuda/parts.h"
#include "kernels/cuda/walk.h"

namespace flashbob::cuda {
namespace {

using enum TensorName;

// Lengths and grid sizes are 32-bit in kernels; offsets are 64-bit.
constexpr int64_t kMaxLength = int64_t{1} << 30;
constexpr int64_t kMaxHeads = int64_t{1} << 30;
constexpr int64_t kMaxItemsPerLaunch = int64_t{1} << 30;

// Items are divided into parts where they are fewer waves than this; their states take no more than this.
constexpr int64_t kPartsWaves = 8;
constexpr size_t kMostPartsBytes = size_t{19} << 20;
// A launch of fewer waves than this ends with a whole one where more items follow.
constexpr int64_t kWholeWaves = 8;
// A slice takes so much longer than it should where the rest would be a crumb: a launch, a wave that few items fill,
// and the device idle around them.
constexpr double kStretch = 1.125;

constexpr TensorSet kTangents = {kUq, kUk, kUv, kTq, kTk, kTv};
constexpr TensorSet kColumnOutputs = {kDq, kDk, kDv, kGq, kGk, kGv, kTdq, kTdk, kTdv};
constexpr TensorSet kRowOutputs = {kGdo, kTo, kTlse};
constexpr TensorSet kQuerySums = {kDq, kGq, kTdq};

size_t Align(size_t bytes) { return (bytes + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment; }

int64_t Blocks(int64_t length, int64_t owned) { return (length + owned - 1) / owned; }

// The member of `names` that is in `set`, or nothing.
std::optional<TensorName> Member(TensorSet set, std::initializer_list<TensorName> names) {
  for (TensorName name : names) {
    if (set.Has(name)) return name;
  }
  return std::nullopt;
}

// Tables of a packed batch: the passes that walk sequences cut them into blocks of different sizes.
constexpr size_t kTables = 4;
size_t TableOf(PassKind pass) {
  switch (pass) {
    case PassKind::kForward:
      return 0;
    case PassKind::kRows:
      return 1;
    case PassKind::kColumns:
      return 2;
    default:
      return 3;
  }
}

// Products of one pass, over the head dim and over the value dim; probes included.
ProductCount ProductsOf(PassKind pass, const Computation& computation) {
  const int64_t probes = computation.problem().probe_count();
  const int64_t tq = computation.inputs().HasAny({kUq, kTq}) ? 1 : 0;
  const int64_t tk = computation.inputs().HasAny({kUk, kTk}) ? 1 : 0;
  const int64_t tv = computation.inputs().HasAny({kUv, kTv}) ? 1 : 0;
  const int64_t g = tq + tk > 0 ? 1 : 0;
  const bool backward = computation.operation() == Operation::kBackward;
  const int64_t tdo = backward || computation.HasInput(kTdo) ? 1 : 0;
  switch (pass) {
    case PassKind::kForward:
      return {1, 1};
    case PassKind::kRows:
      return {1 + probes * (tq + tk), probes * (g + tv)};
    case PassKind::kColumns:
      return {1 + probes * (2 * (tq + tk) + 2), g + probes * (tv + g + 2 * tdo)};
    case PassKind::kRowDots:
    case PassKind::kZeroSums:
    case PassKind::kFinish:
      return {};
  }
  return {};
}

}  // namespace

absl::StatusOr<std::unique_ptr<const CudaPlan>> CudaPlan::Create(const Computation& computation,
                                                                 const DeviceTraits& device, double slice_seconds) {
  const AttentionProblem& problem = computation.problem();
  for (int64_t length : {problem.total_queries(), problem.total_keys()}) {
    if (problem.layout() == Layout::kTHD ? length > kMaxLength
                                         : problem.batch() > 0 && length / problem.batch() > kMaxLength) {
      return absl::UnimplementedError(
          absl::StrCat("a length of ", length, " is not served on GPUs; the nearest that is: ", kMaxLength));
    }
  }
  for (int64_t extent : {problem.batch(), problem.heads(), problem.probe_count()}) {
    if (extent > kMaxHeads) {
      return absl::UnimplementedError(absl::StrCat("a batch, head or probe count of ", extent,
                                                   " is not served on GPUs; the nearest that is: ", kMaxHeads));
    }
  }
  std::unique_ptr<CudaPlan> plan(new CudaPlan(computation, device));
  plan->ChoosePasses();
  if (plan->packed_) plan->MakeTables();
  double pass_flops = 0;
  for (PassKind pass : plan->passes_) {
    const ProductCount count = ProductsOf(pass, computation);
    const double flops = problem.VisiblePairs() * static_cast<double>(count.over_head_dim * problem.head_dim() +
                                                                      count.over_value_dim * problem.value_dim());
    plan->CutPass(pass, flops, slice_seconds);
    pass_flops += flops;
  }
  for (LaunchStep& step : plan->steps_) {
    step.flops = pass_flops > 0 ? step.flops / pass_flops * computation.flops() : 0;
  }
  plan->LayOutWorkspace();
  plan->CutSlices(slice_seconds);
  return plan;
}

CudaPlan::CudaPlan(const Computation& computation, const DeviceTraits& device)
    : Plan(computation),
      device_(device),
      kernels_(SelectKernels(computation, device)),
      real_bytes_(SizeOf(StatisticsDType(computation.problem().dtype()))),
      packed_(computation.problem().layout() == Layout::kTHD) {}

void CudaPlan::ChoosePasses() {
  const Computation& c = computation();
  if (c.operation() == Operation::kForward) {
    passes_ = {PassKind::kForward};
    return;
  }
  recompute_ = !c.HasInput(kLse);
  const bool wants_columns = c.outputs().HasAny(kColumnOutputs);
  const bool tangents = c.inputs().HasAny(kTangents);
  const bool backward = c.operation() == Operation::kBackward;
  if (!tangents && !backward) zero_outputs_ = c.outputs() & kRowOutputs;
  if (!tangents && !backward && !c.HasInput(kTdo)) {
    zero_outputs_ = c.outputs();
    return;
  }
  if (zero_outputs_ == c.outputs()) return;
  if (recompute_) passes_.push_back(PassKind::kForward);
  passes_.push_back(tangents ? PassKind::kRows : PassKind::kRowDots);
  const bool wants_sums = c.outputs().HasAny(kQuerySums);
  if (wants_sums) passes_.push_back(PassKind::kZeroSums);
  if (wants_columns) passes_.push_back(PassKind::kColumns);
  if (wants_sums) passes_.push_back(PassKind::kFinish);
}

const PassKernel& CudaPlan::KernelOf(PassKind pass) const {
  switch (pass) {
    case PassKind::kForward:
      return kernels_.forward;
    case PassKind::kRowDots:
      return kernels_.row_dots;
    case PassKind::kRows:
      return kernels_.rows;
    case PassKind::kColumns:
      return kernels_.columns;
    case PassKind::kZeroSums:
    case PassKind::kFinish:
      return kernels_.finish;
  }
  return kernels_.finish;
}

bool CudaPlan::InTiles(PassKind pass) const {
  return (pass == PassKind::kFinish && kernels_.fragment_sums) ||
         (pass == PassKind::kRowDots && kernels_.scalar_rows > 0);
}

void CudaPlan::MakeTables() {
  const AttentionProblem& problem = computation().problem();
  const auto batch = static_cast<size_t>(problem.batch());
  if (batch == 0) return;
  tables_.resize(kTables * batch);
  for (PassKind pass : {PassKind::kForward, PassKind::kRows, PassKind::kColumns, PassKind::kFinish}) {
    const size_t table = TableOf(pass);
    const int64_t owned = std::max(1, KernelOf(pass).owned);
    int64_t query_blocks = 0;
    int64_t key_blocks = 0;
    int64_t padded_rows = 0;
    for (size_t b = 0; b < batch; ++b) {
      const auto sequence = static_cast<int64_t>(b);
      SequenceInfo& info = tables_[table * batch + b];
      info.query_start = problem.SequenceStart(kQ, sequence);
      info.key_start = problem.SequenceStart(kK, sequence);
      info.query_len = static_cast<int32_t>(problem.query_len(sequence));
      info.key_len = static_cast<int32_t>(problem.key_len(sequence));
      info.first_query_block = query_blocks;
      info.first_key_block = key_blocks;
      info.first_padded_row = padded_rows;
      query_blocks += Blocks(info.query_len, owned);
      key_blocks += Blocks(info.key_len, owned);
      padded_rows += Blocks(info.query_len, kernels_.sum_rows) * kernels_.sum_rows;
    }
    blocks_[table] = pass == PassKind::kColumns ? key_blocks : query_blocks;
  }
  table_region_.bytes = kTables * batch * sizeof(SequenceInfo);
}

PassArgs CudaPlan::ShapeArgs(PassKind pass) const {
  const AttentionProblem& problem = computation().problem();
  PassArgs args;
  args.batch = static_cast<int32_t>(problem.batch());
  args.heads = static_cast<int32_t>(problem.heads());
  args.kv_heads = static_cast<int32_t>(problem.kv_heads());
  args.probes = pass == PassKind::kForward ? 1 : static_cast<int32_t>(problem.probe_count());
  args.head_dim = static_cast<int32_t>(problem.head_dim());
  args.value_dim = static_cast<int32_t>(problem.value_dim());
  args.window_left = problem.options().window_left;
  args.window_right = problem.options().window_right;
  args.bottom_right = problem.options().alignment == Alignment::kBottomRight;
  args.long_walks_first = args.window_right >= 0 && args.window_left < 0;
  args.scale = problem.scale();
  args.row_alignment = RowAlignment(problem);
  args.interleave = KernelOf(pass).interleave;
  const bool over_rows =
      !InTiles(pass) && (pass == PassKind::kRowDots || pass == PassKind::kZeroSums || pass == PassKind::kFinish);
  if (packed_ && over_rows) {
    args.batch = 1;
    args.query_len = static_cast<int32_t>(problem.total_queries());
  } else if (packed_) {
    const size_t table = TableOf(pass);
    args.sequences = tables_.data() + table * static_cast<size_t>(problem.batch());
    (pass == PassKind::kColumns ? args.key_blocks : args.query_blocks) = blocks_[table];
  } else if (problem.batch() > 0) {
    args.query_len = static_cast<int32_t>(problem.query_len(0));
    args.key_len = static_cast<int32_t>(problem.key_len(0));
    if (!over_rows) {
      args.query_blocks = Blocks(args.query_len, KernelOf(pass).owned);
      args.key_blocks = Blocks(args.key_len, KernelOf(pass).owned);
    }
  }
  args.power_shift = pass == PassKind::kRows                                   ? kernels_.rows_power_shift
                     : pass == PassKind::kColumns || pass == PassKind::kFinish ? kernels_.columns_power_shift
                                                                               : 0;
  if (kernels_.log2_columns) {
    args.lse_factor = std::numbers::log2e;
    args.lse_shift = kernels_.columns_power_shift;
  }
  return args;
}

void CudaPlan::CutPass(PassKind pass, double flops, double slice_seconds) {
  const PassKernel& kernel = KernelOf(pass);
  const AttentionProblem& problem = computation().problem();
  const PassArgs args = ShapeArgs(pass);
  if (problem.batch() == 0) return;
  if (pass == PassKind::kZeroSums) {
    steps_.push_back({.pass = pass});
    return;
  }
  if (InTiles(pass)) {
    const int64_t items = args.query_blocks * args.probes * (packed_ ? 1 : args.batch) * args.heads;
    for (int64_t begin = 0; begin < items; begin += kMaxItemsPerLaunch) {
      steps_.push_back({.pass = pass, .item_begin = begin, .items = std::min(items - begin, kMaxItemsPerLaunch)});
    }
    return;
  }
  if (pass == PassKind::kRowDots || pass == PassKind::kFinish) {
    const int64_t rows = int64_t{args.probes} * args.batch * args.heads * args.query_len;
    if (rows == 0) return;
    constexpr double kBytesPerSecond = 1e12;
    const double seconds = static_cast<double>(rows) * static_cast<double>(problem.head_dim()) * 8 / kBytesPerSecond;
    const int64_t warps_per_cta = kernel.threads / 32;
    const int64_t most = int64_t{device_.multiprocessors} * kernel.ctas_per_sm;
    steps_.push_back({.pass = pass, .items = std::min(Blocks(rows, warps_per_cta), most), .seconds = seconds});
    return;
  }

  const bool columns = pass == PassKind::kColumns;
  const int64_t blocks = columns ? args.key_blocks : args.query_blocks;
  const int64_t repeats = int64_t{args.probes} * (packed_ ? 1 : args.batch) * (columns ? args.kv_heads : args.heads);
  const int64_t items = blocks * repeats;
  if (items == 0) return;

  const auto block_of = [&](int64_t item) {
    return static_cast<size_t>(PositionOf(item, blocks, repeats, args.interleave).block);
  };

  // The walk of every block of a head, and how many of its steps are tiles.
  std::vector<TileRange> walks(static_cast<size_t>(blocks));
  std::vector<int64_t> tiles(static_cast<size_t>(blocks));
  double head_tiles = 0;
  int64_t longest = 0;
  for (int64_t block = 0; block < blocks; ++block) {
    const auto i = static_cast<size_t>(block);
    if (columns) {
      const Item item = ItemAt<Side::kKey>(args, block, kernel.owned);
      const TileRange range = QueryTiles(item.sequence.mask, item.block, kernel.owned, kernel.streamed);
      walks[i] = ColumnWalk(range, Blocks(item.sequence.mask.query_len, kernel.streamed), problem.group());
      tiles[i] = (range.end - range.begin) * problem.group();
    } else {
      const Item item = ItemAt<Side::kQuery>(args, block, kernel.owned);
      walks[i] = KeyTiles(item.sequence.mask, item.block, kernel.owned, kernel.streamed);
      tiles[i] = walks[i].end - walks[i].begin;
    }
    if (kernel.compact_walk) walks[i] = {0, tiles[i]};
    head_tiles += static_cast<double>(tiles[i]);
    longest = std::max(longest, tiles[i]);
  }
  const ProductCount count = ProductsOf(pass, computation());
  const double probes = args.probes;  // products count all probes, an item does one
  const auto filled = [&](int64_t dim) { return static_cast<double>(std::max<int64_t>(dim, kernel.filled_dim)); };
  const double tile_flops = 2.0 * kernel.owned * kernel.streamed *
                            (static_cast<double>(count.over_head_dim) * filled(problem.head_dim()) +
                             static_cast<double>(count.over_value_dim) * filled(problem.value_dim())) /
                            probes;
  const int64_t wave = int64_t{device_.multiprocessors} * kernel.ctas_per_sm;
  const double tile_seconds = tile_flops * kernel.ctas_per_sm / kernel.flops_per_sm;  // of one CTA among its neighbours
  const double total_tiles = head_tiles * static_cast<double>(repeats);
  const double seconds =
      std::max(total_tiles * tile_seconds / static_cast<double>(wave), static_cast<double>(longest) * tile_seconds);
  const double flops_per_tile = total_tiles > 0 ? flops / total_tiles : 0;
  if (seconds <= kStretch * slice_seconds && items <= kMaxItemsPerLaunch) {
    LaunchStep step = {.pass = pass, .items = items, .flops = flops, .seconds = seconds};
    if (kernel.compact_walk && items <= kPartsWaves * wave) {
      DivisiblePass divisible = {.tile_seconds = tile_seconds, .wave = wave, .state_bytes = kernel.state_bytes};
      for (int64_t item = 0; item < items; ++item) divisible.tiles.push_back(tiles[block_of(item)]);
      step.parts = ChooseParts(divisible, kMostPartsBytes);
      if (step.parts > 1) {
        step.seconds = SecondsInParts(divisible, step.parts);
        state_region_.bytes =
            std::max(state_region_.bytes, static_cast<size_t>(items * step.parts) * kernel.state_bytes);
        arrivals_region_.bytes = std::max(arrivals_region_.bytes, static_cast<size_t>(items) * sizeof(int32_t));
      }
    }
    steps_.push_back(step);
    return;
  }

  const auto add = [&](LaunchStep step, double launch_tiles, double launch_seconds) {
    step.pass = pass;
    step.flops = launch_tiles * flops_per_tile;
    step.seconds = launch_seconds;
    steps_.push_back(step);
  };
  const bool split_items = static_cast<double>(longest) * tile_seconds > slice_seconds;
  int64_t item = 0;
  while (item < items) {
    if (!split_items) {
      const int64_t begin = item;
      double launch_tiles = 0;
      int64_t launch_longest = 0;
      double launch_seconds = 0;
      while (item < items && item - begin < kMaxItemsPerLaunch) {
        const int64_t more = tiles[block_of(item)];
        const double with_more =
            std::max((launch_tiles + static_cast<double>(more)) * tile_seconds / static_cast<double>(wave),
                     static_cast<double>(std::max(launch_longest, more)) * tile_seconds);
        if (with_more > slice_seconds && item - begin >= wave) break;
        launch_tiles += static_cast<double>(more);
        launch_longest = std::max(launch_longest, more);
        launch_seconds = with_more;
        ++item;
      }
      const int64_t taken = item - begin;
      const double by_waves = static_cast<double>(Blocks(taken, wave) * launch_longest) * tile_seconds;
      // What a last wave of few would leave idle goes to the next launch; of the last launch, what makes it too long.
      if (taken > wave && taken < kWholeWaves * wave && (item < items || by_waves > slice_seconds)) {
        for (int64_t over = (item - begin) % wave; over > 0; --over) {
          launch_tiles -= static_cast<double>(tiles[block_of(--item)]);
        }
        launch_seconds = std::max(launch_tiles * tile_seconds / static_cast<double>(wave),
                                  static_cast<double>(launch_longest) * tile_seconds);
      }
      add({.pass = pass, .item_begin = begin, .items = item - begin}, launch_tiles, launch_seconds);
      continue;
    }
    const int64_t count_items = std::min(wave, items - item);
    int64_t walk_begin = INT64_MAX;
    int64_t walk_end = 0;
    for (int64_t i = item; i < item + count_items; ++i) {
      const TileRange& walk = walks[block_of(i)];
      if (walk.begin >= walk.end) continue;
      walk_begin = std::min(walk_begin, walk.begin);
      walk_end = std::max(walk_end, walk.end);
    }
    walk_begin = std::min(walk_begin, walk_end);
    // Even cuts: a short last one would cost a launch, and its states, for little.
    const int64_t most_tiles = std::max<int64_t>(1, static_cast<int64_t>(slice_seconds / tile_seconds));
    const int64_t cuts = std::max<int64_t>(1, Blocks(walk_end - walk_begin, most_tiles));
    const int64_t step_tiles = std::max<int64_t>(1, Blocks(walk_end - walk_begin, cuts));
    int64_t tile = walk_begin;
    do {
      const int64_t next = std::min(tile + step_tiles, walk_end);
      double launch_tiles = 0;
      for (int64_t i = item; i < item + count_items; ++i) {
        const size_t block = block_of(i);
        const TileRange& walk = walks[block];
        const int64_t steps = std::min(next, walk.end) - std::max(tile, walk.begin);
        // Steps between the bands of two heads of a group are no tiles: count them in proportion.
        if (steps > 0) {
          launch_tiles += static_cast<double>(steps) * static_cast<double>(tiles[block]) /
                          static_cast<double>(walk.end - walk.begin);
        }
      }
      add({.pass = pass,
           .item_begin = item,
           .items = count_items,
           .tile_begin = tile == walk_begin ? 0 : tile,
           .tile_end = next == walk_end ? INT64_MAX : next},
          launch_tiles, static_cast<double>(next - tile) * tile_seconds);
      tile = next;
    } while (tile < walk_end);
    item += count_items;
  }
  if (split_items) {
    state_region_.bytes =
        std::max(state_region_.bytes, static_cast<size_t>(std::min(wave, items)) * kernel.state_bytes);
  }
}

int64_t CudaPlan::SumColumns() const {
  const int64_t head_dim = computation().problem().head_dim();
  if (kernels_.sum_columns > 0) return kernels_.sum_columns;
  return kernels_.fragment_sums ? Blocks(head_dim, 8) * 8 : head_dim;
}

int64_t CudaPlan::SumRows() const {
  const AttentionProblem& problem = computation().problem();
  if (!kernels_.fragment_sums || problem.batch() == 0) return problem.total_queries();
  const int64_t block = kernels_.sum_rows;
  if (!packed_) return problem.batch() * Blocks(problem.query_len(0), block) * block;
  if (kernels_.scalar_rows == 0) return (problem.total_queries() / block + problem.batch()) * block;
  int64_t rows = 0;
  for (int64_t b = 0; b < problem.batch(); ++b) rows += Blocks(problem.query_len(b), block) * block;
  return rows;
}

void CudaPlan::LayOutWorkspace() {
  const Computation& c = computation();
  const AttentionProblem& problem = c.problem();
  const auto rows = static_cast<size_t>(problem.total_queries() * problem.heads());
  const auto probe_rows = rows * static_cast<size_t>(problem.probe_count());
  const auto has = [&](PassKind pass) { return std::find(passes_.begin(), passes_.end(), pass) != passes_.end(); };
  if (recompute_ && has(PassKind::kForward)) {
    lse_region_.bytes = rows * real_bytes_;
    sum_region_.bytes = rows * static_cast<size_t>(problem.value_dim()) * real_bytes_;
  }
  const auto padded_rows = static_cast<size_t>(problem.probe_count() * problem.heads() * SumRows());
  if (has(PassKind::kColumns) || has(PassKind::kRowDots)) {
    scalars_region_.bytes = (kernels_.scalar_rows > 0 ? padded_rows : probe_rows) * 4 * real_bytes_;
  }
  if (has(PassKind::kFinish) || (has(PassKind::kColumns) && kernels_.always_sums)) {
    sum_region_.bytes = std::max(sum_region_.bytes, padded_rows * static_cast<size_t>(SumColumns()) * real_bytes_);
  }
  if (has(PassKind::kFinish)) {
    if (problem.deterministic() && has(PassKind::kColumns)) {
      const auto tiles =
          static_cast<size_t>(kernels_.scalar_rows > 0 ? SumRows() / kernels_.columns.streamed * kernels_.turns_of_tile
                              : packed_ || problem.batch() == 0
                                  ? problem.total_queries() / kernels_.columns.streamed + problem.batch()
                                  : problem.batch() * Blocks(problem.query_len(0), kernels_.columns.streamed));
      turn_region_.bytes = tiles * static_cast<size_t>(problem.heads() * problem.probe_count()) * sizeof(int32_t);
      ticket_region_.bytes = sizeof(int32_t);
    }
  }
  if (packed_ &&
      (kernels_.forward.launch != nullptr || kernels_.rows.launch != nullptr || kernels_.columns.launch != nullptr)) {
    maps_region_.bytes = hopper::SequenceMapBytes(problem.batch());
  }
  size_t offset = 0;
  for (Region* region : {&table_region_, &maps_region_, &lse_region_, &scalars_region_, &sum_region_, &turn_region_,
                         &ticket_region_, &arrivals_region_, &state_region_}) {
    region->offset = offset;
    offset += Align(region->bytes);
  }
  workspace_bytes_ = offset;
}

void CudaPlan::CutSlices(double slice_seconds) {
  for (size_t i = 0; i < steps_.size(); ++i) {
    const double seconds = (slices_.empty() ? 0 : slices_.back().seconds) + steps_[i].seconds;
    const bool crumb = steps_[i].seconds <= (kStretch - 1) * slice_seconds;
    if (slices_.empty() || seconds > (crumb ? kStretch : 1) * slice_seconds) slices_.push_back({.begin = i});
    Slice& slice = slices_.back();
    slice.end = i + 1;
    slice.flops += steps_[i].flops;
    slice.seconds += steps_[i].seconds;
  }
  // Outputs that are only zeroed, or nothing at all: one slice all the same.
  if (slices_.empty()) slices_.push_back({.flops = computation().flops()});
}

TensorView CudaPlan::View(TensorName name, void* data) const {
  const Strides strides = computation().problem().StridesOf(name);
  return {.data = data, .probe = strides.probe, .batch = strides.batch, .head = strides.head, .row = strides.row};
}

TensorView CudaPlan::PaddedView(void* data, int64_t width) const {
  const AttentionProblem& problem = computation().problem();
  const int64_t rows = SumRows();
  TensorView view = {.data = data, .row = width};
  view.head = (packed_ || problem.batch() == 0 ? rows : rows / problem.batch()) * width;
  view.batch = packed_ ? 0 : view.head * problem.heads();
  view.probe = rows * problem.heads() * width;
  return view;
}

PassArgs CudaPlan::Args(PassKind pass, const TensorPointers& tensors, char* workspace) const {
  const Computation& c = computation();
  PassArgs args = ShapeArgs(pass);
  if (args.sequences != nullptr) {
    args.sequences =
        reinterpret_cast<const SequenceInfo*>(workspace + table_region_.offset) + (args.sequences - tables_.data());
  }
  const auto input = [&](std::initializer_list<TensorName> names) {
    const std::optional<TensorName> name = Member(c.inputs(), names);
    return name.has_value() ? View(*name, tensors.Get(*name)) : TensorView{};
  };
  const auto output = [&](std::initializer_list<TensorName> names) {
    const std::optional<TensorName> name = Member(c.outputs(), names);
    return name.has_value() ? View(*name, tensors.Get(*name)) : TensorView{};
  };
  const bool backward = c.operation() == Operation::kBackward;
  const bool tangents = c.inputs().HasAny(kTangents);
  args.q = input({kQ});
  args.k = input({kK});
  args.v = input({kV});
  args.o = input({kO});
  args.lse = input({kLse});
  args.tq = input({kUq, kTq});
  args.tk = input({kUk, kTk});
  args.tv = input({kUv, kTv});
  // Backward is the tangent of the gradients along tdo = do: math.md, "The other compositions".
  if (backward) {
    args.tdo = input({kDo});
  } else {
    args.tdo = input({kTdo});
    if (tangents) args.dout = input({kDo});
  }
  if (recompute_) {
    args.lse = View(kLse, workspace + lse_region_.offset);
    args.o = View(kO, workspace + sum_region_.offset);
    args.o_is_accumulator = true;
  }
  if (pass == PassKind::kForward) {
    args.out = recompute_ ? args.o : output({kO});
    args.out_lse = recompute_ ? args.lse : output({kLse});
  } else if (pass == PassKind::kRows) {
    args.out = output({kGdo, kTo});
    args.out_lse = output({kTlse});
    args.write_row_scalars = scalars_region_.bytes > 0;
  }
  if (scalars_region_.bytes > 0) {
    // One record a query row, in the order of tlse, or padded as the sums of gQ are.
    args.row_scalars = View(kTlse, workspace + scalars_region_.offset);
    if (kernels_.scalar_rows > 0) args.row_scalars = PaddedView(workspace + scalars_region_.offset, 1);
  }
  args.gq = output({kDq, kGq, kTdq});
  args.gk = output({kDk, kGk, kTdk});
  args.gv = output({kDv, kGv, kTdv});
  if (args.gq.data != nullptr || kernels_.always_sums) {
    args.gq_sum = PaddedView(workspace + sum_region_.offset, SumColumns());
  }
  args.sequence_maps = maps_region_.bytes > 0 ? workspace + maps_region_.offset : nullptr;
  if (turn_region_.bytes > 0) {
    args.turn = reinterpret_cast<int32_t*>(workspace + turn_region_.offset);
    args.turn_tiles = static_cast<int64_t>(turn_region_.bytes / sizeof(int32_t)) /
                      (int64_t{args.heads} * static_cast<int64_t>(args.probes));
    args.ticket = reinterpret_cast<int32_t*>(workspace + ticket_region_.offset);
  }
  return args;
}

absl::Status CudaPlan::ZeroSums(char* workspace, cudaStream_t stream) const {
  for (const Region* region : {&sum_region_, &turn_region_}) {
    if (region->bytes == 0) continue;
    FLASHBOB_RETURN_IF_ERROR(
        ToStatus(cudaMemsetAsync(workspace + region->offset, 0, region->bytes, stream), "zeroing the sums of gQ"));
  }
  return absl::OkStatus();
}

absl::Status CudaPlan::LaunchOne(const LaunchStep& step, PassArgs args, char* workspace, cudaStream_t stream) const {
  const PassKernel& kernel = KernelOf(step.pass);
  args.item_begin = step.item_begin;
  args.tile_begin = step.tile_begin;
  args.tile_end = step.tile_end;
  if (state_region_.bytes > 0) args.state = workspace + state_region_.offset;
  args.parts = step.parts;
  if (arrivals_region_.bytes > 0) args.arrivals = reinterpret_cast<int32_t*>(workspace + arrivals_region_.offset);
  if (step.pass == PassKind::kColumns && args.ticket != nullptr) {
    FLASHBOB_RETURN_IF_ERROR(ToStatus(cudaMemsetAsync(args.ticket, 0, sizeof(int32_t), stream), "zeroing the ticket"));
  }
  if (kernel.launch != nullptr) {
    return ToStatus(kernel.launch(kernel, args, step.items * step.parts, stream), kernel.name);
  }
  constexpr size_t kSharedWithoutOptIn = 48 << 10;
  if (kernel.shared_bytes > kSharedWithoutOptIn) {
    FLASHBOB_RETURN_IF_ERROR(ToStatus(cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                           static_cast<int>(kernel.shared_bytes)),
                                      kernel.name));
  }
  void* parameters[] = {&args};
  return ToStatus(
      cudaLaunchKernel(kernel.function, dim3(static_cast<unsigned>(step.items)),
                       dim3(static_cast<unsigned>(kernel.threads)), parameters, kernel.shared_bytes, stream),
      kernel.name);
}

absl::Status CudaPlan::Launch(int slice, const TensorPointers& tensors, void* workspace, cudaStream_t stream) const {
  char* base = static_cast<char*>(workspace);
  if (slice == 0) {
    if (table_region_.bytes > 0) {
      FLASHBOB_RETURN_IF_ERROR(ToStatus(cudaMemcpyAsync(base + table_region_.offset, tables_.data(),
                                                        table_region_.bytes, cudaMemcpyHostToDevice, stream),
                                        "copying a packed batch's table"));
    }
    if (arrivals_region_.bytes > 0) {
      FLASHBOB_RETURN_IF_ERROR(ToStatus(
          cudaMemsetAsync(base + arrivals_region_.offset, 0, arrivals_region_.bytes, stream), "zeroing counts"));
    }
    absl::Status zeroed;
    zero_outputs_.ForEach([&](TensorName name) {
      const auto bytes = static_cast<size_t>(computation().problem().NumBytes(name));
      if (bytes > 0) zeroed.Update(ToStatus(cudaMemsetAsync(tensors.Get(name), 0, bytes, stream), "zeroing an output"));
    });
    FLASHBOB_RETURN_IF_ERROR(zeroed);
  }
  const Slice& steps = slices_[static_cast<size_t>(slice)];
  for (size_t i = steps.begin; i < steps.end; ++i) {
    const LaunchStep& step = steps_[i];
    if (step.pass == PassKind::kZeroSums) {
      FLASHBOB_RETURN_IF_ERROR(ZeroSums(base, stream));
      continue;
    }
    FLASHBOB_RETURN_IF_ERROR(LaunchOne(step, Args(step.pass, tensors, base), base, stream));
  }
  return absl::OkStatus();
}

}  // namespace flashbob::cuda
