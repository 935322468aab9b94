#include "kernels/cpu/cpu_plan.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "kernels/cpu/passes.h"

namespace flashbob::cpu {
namespace {

// Sets of tangents that share a visit of a tile: enough to hide the cost of S and dP, few enough for small workspaces
// and short slices.
constexpr int64_t kMaxGroupProbes = 8;

// A task's cost beside its products. For each element of its rows, in FLOP of products: mostly waiting for memory. For
// itself, for each of its tiles and of its rows, in time: calls, conversions, edges of the mask, a logarithm.
constexpr double kFlopsPerRowElement = 64;
constexpr double kTaskSeconds = 1e-6;
constexpr double kTileSeconds = 1e-6;
constexpr double kRowSeconds = 5e-8;

struct Lengths {
  int64_t queries = 0;  // of the longest sequence
  int64_t keys = 0;
};

Lengths LongestOf(const AttentionProblem& problem) {
  Lengths longest;
  const int64_t sequences = problem.layout() == Layout::kTHD ? problem.batch() : std::min<int64_t>(problem.batch(), 1);
  for (int64_t b = 0; b < sequences; ++b) {
    longest.queries = std::max(longest.queries, problem.query_len(b));
    longest.keys = std::max(longest.keys, problem.key_len(b));
  }
  return longest;
}

int64_t RoundUp(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// Tile shapes, best first: multiples of 48 keys are what oneDNN's kernels for AVX-512 like, and these fit with their
// operands into 1 MiB of cache at a head dim of 64. README.md has the figures.
constexpr int64_t kQueries[] = {128, 64};
constexpr int64_t kKeys[] = {240, 144, 96};
constexpr int64_t kKeysFloat64[] = {144, 96};

TileShape ChooseTile(const AttentionProblem& problem) {
  const absl::Span<const int64_t> key_sizes =
      problem.dtype() == DType::kFloat64 ? absl::Span<const int64_t>(kKeysFloat64) : absl::Span<const int64_t>(kKeys);
  size_t queries = 0;
  size_t keys = 0;
  // Takes the next smaller tiles, first in keys, while `too_large`.
  const auto shrink = [&](const auto& too_large) {
    while (keys + 1 < key_sizes.size() && too_large()) ++keys;
    while (queries + 1 < std::size(kQueries) && too_large()) ++queries;
  };
  // A narrow band: so that less of what the tiles cover is masked.
  const ProblemOptions& options = problem.options();
  if (options.window_left >= 0 && options.window_right >= 0) {
    const auto band = static_cast<double>(options.window_left) + static_cast<double>(options.window_right);
    shrink([&] { return 2.5 * static_cast<double>(kQueries[queries] + key_sizes[keys]) > band; });
  }
  // Short sequences and few heads: so that there are tasks for many threads.
  constexpr int64_t kTasks = 16;
  shrink([&] {
    return TaskGrid(problem, Side::kKey, key_sizes[keys]).size() < kTasks ||
           TaskGrid(problem, Side::kQuery, kQueries[queries]).size() < kTasks;
  });
  const Lengths longest = LongestOf(problem);
  TileShape tile;
  tile.queries = std::clamp<int64_t>(longest.queries, 1, kQueries[queries]);
  tile.keys = std::clamp<int64_t>(longest.keys, 1, key_sizes[keys]);
  tile.stride = RoundUp(tile.keys, kTileRowAlignment);
  return tile;
}

int64_t TangentSets(const Computation& computation) {
  const bool second_order =
      computation.operation() == Operation::kDoubleBackward || computation.operation() == Operation::kJvp;
  return second_order ? computation.problem().probe_count() : 1;
}

int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The same mask with queries for keys and keys for queries.
BandMask Transposed(const BandMask& mask) { return {mask.key_len, mask.query_len, mask.right, mask.left, -mask.shift}; }

// Of `blocks` of rows of `own`, the most blocks of `other` that one sees; or one or two more.
int64_t MostBlocksSeen(const BandMask& mask, IndexRange blocks, const TaskGrid& own, const TaskGrid& other) {
  if (mask.left < 0 && mask.right < 0) return other.BlocksOf({0, mask.key_len}).size();
  const int64_t block_rows = own.block_rows();
  const auto seen = [&](int64_t block) {
    const IndexRange rows = {block * block_rows, std::min((block + 1) * block_rows, mask.query_len)};
    return mask.KeysOf(rows).size();
  };
  // As a function of the block, the number of rows seen rises, stays, falls: each linearly but where the band meets the
  // first or the last of them. So it is largest at an end or beside one of these corners.
  int64_t most = std::max(seen(blocks.begin), seen(blocks.end - 1));
  const auto meet = [&](int64_t row) {
    const int64_t block = std::clamp<int64_t>(row, 0, mask.query_len - 1) / block_rows;
    for (int64_t beside = block - 1; beside <= block + 1; ++beside) {
      if (beside >= blocks.begin && beside < blocks.end) most = std::max(most, seen(beside));
    }
  };
  if (mask.left >= 0) meet(mask.left - mask.shift);
  if (mask.right >= 0) meet(mask.key_len - 1 - mask.right - mask.shift);
  if (most == 0) return 0;
  // Wherever its first one lies within its block.
  const int64_t most_blocks = (most + other.block_rows() - 2) / other.block_rows() + 1;
  return std::min(most_blocks, other.BlocksOf({0, mask.key_len}).size());
}

}  // namespace

CpuPlan::CpuPlan(const Computation& computation, const Limits& limits)
    : Plan(computation),
      schedule_(computation),
      threads_(limits.threads),
      tile_(ChooseTile(computation.problem())),
      probes_(TangentSets(computation)),
      group_probes_(CeilDivide(probes_, CeilDivide(probes_, kMaxGroupProbes))),
      groups_(CeilDivide(probes_, group_probes_)),
      row_grid_(computation.problem(), Side::kQuery, tile_.queries),
      column_grid_(computation.problem(), Side::kKey, tile_.keys) {
  BuildWaves(limits);
  if (computation.problem().dtype() == DType::kFloat64) {
    MapWorkspace<double>();
  } else {
    MapWorkspace<float>();
  }
}

absl::StatusOr<std::unique_ptr<const CpuPlan>> CpuPlan::Create(const Computation& computation, const Limits& limits) {
  // First of all: a plan of what no memory can hold would itself take for ever.
  const auto tensor_bytes =
      static_cast<double>(computation.input_bytes()) + static_cast<double>(computation.output_bytes());
  if (tensor_bytes > static_cast<double>(limits.memory_bytes)) {
    return absl::ResourceExhaustedError(absl::StrCat("inputs of ", computation.input_bytes(), " bytes and outputs of ",
                                                     computation.output_bytes(), " bytes do not fit into ",
                                                     limits.memory_bytes, " bytes of memory"));
  }
  std::unique_ptr<const CpuPlan> plan(new CpuPlan(computation, limits));
  if (tensor_bytes + static_cast<double>(plan->workspace_bytes()) > static_cast<double>(limits.memory_bytes)) {
    return absl::ResourceExhaustedError(absl::StrCat("inputs of ", computation.input_bytes(), " bytes, outputs of ",
                                                     computation.output_bytes(), " bytes and a workspace of ",
                                                     plan->workspace_bytes(), " bytes do not fit into ",
                                                     limits.memory_bytes, " bytes of memory"));
  }
  const double slices = static_cast<double>(plan->groups_) * static_cast<double>(plan->SlicesPerGroup());
  if (slices > std::numeric_limits<int>::max()) {
    return absl::FailedPreconditionError(absl::StrCat("this is ", computation.flops(), " FLOP in ", slices,
                                                      " slices or more; at most ", std::numeric_limits<int>::max(),
                                                      " slices are served"));
  }
  return plan;
}

void CpuPlan::BuildWaves(const Limits& limits) {
  const int64_t head_dim = problem().head_dim();
  const int64_t value_dim = problem().value_dim();
  const WaveTable::Limits wave_limits = {threads_, limits.slice_flops};
  const auto probes = static_cast<double>(group_probes_);
  const double rate = limits.thread_flops_per_second;
  const double task_flops = kTaskSeconds * rate;
  const double tile_flops = (1 + probes) * kTileSeconds * rate;
  const double row_flops =
      (1 + probes) * (kFlopsPerRowElement * static_cast<double>(head_dim + value_dim) + kRowSeconds * rate);
  // Of `rows` rows that visit `tiles` tiles with `seen` rows of the other side in all.
  const auto bound = [&](int64_t rows, int64_t tiles, int64_t seen, double pair_flops) {
    const double per_row = row_flops + pair_flops * static_cast<double>(seen);
    return TaskBound{tiles, task_flops + static_cast<double>(tiles) * tile_flops + static_cast<double>(rows) * per_row};
  };
  if (schedule_.rows) {
    const double pair_flops = schedule_.RowFlopsPerPair(head_dim, value_dim, group_probes_);
    row_waves_ = WaveTable(row_grid_, wave_limits, [&](int64_t b, IndexRange blocks) {
      const int64_t tiles =
          schedule_.row_tiles ? MostBlocksSeen(problem().mask(b), blocks, row_grid_, column_grid_) : 0;
      const int64_t seen = std::min(tiles * tile_.keys, column_grid_.Length(b));
      return bound(std::min(tile_.queries, row_grid_.Length(b)), tiles, seen, pair_flops);
    });
  }
  if (schedule_.columns) {
    const double pair_flops = schedule_.ColumnFlopsPerPair(head_dim, value_dim, group_probes_);
    const int64_t group = problem().group();
    column_waves_ = WaveTable(column_grid_, wave_limits, [&](int64_t b, IndexRange blocks) {
      const int64_t tiles =
          schedule_.column_tiles ? MostBlocksSeen(Transposed(problem().mask(b)), blocks, column_grid_, row_grid_) : 0;
      const int64_t seen = group * std::min(tiles * tile_.queries, row_grid_.Length(b));
      return bound(std::min(tile_.keys, column_grid_.Length(b)), group * tiles, seen, pair_flops);
    });
  }
}

template <typename Real>
void CpuPlan::MapWorkspace() {
  Carver carver(nullptr);
  const auto reserve = [&](size_t bytes) {
    const size_t offset = carver.bytes();
    carver.Take<std::byte>(static_cast<int64_t>(bytes));
    return offset;
  };
  const auto size_of = [&]<typename Part>() {
    Carver part(nullptr);
    Part(part, *this);
    return part.bytes();
  };
  const auto rows = static_cast<size_t>(problem().heads() * problem().total_queries());
  const auto group = static_cast<size_t>(group_probes_);
  const size_t row_bytes = rows * sizeof(Real);
  map_.l = reserve(schedule_.column_tiles ? row_bytes : 0);
  map_.d = reserve(schedule_.need_z ? row_bytes : 0);
  map_.c = reserve(schedule_.has_g() && (schedule_.need_x || schedule_.need_y) ? group * row_bytes : 0);
  map_.r = reserve(schedule_.need_y ? group * row_bytes : 0);
  const bool gq_holds_sums = SizeOf(problem().dtype()) == sizeof(Real);
  const bool sums_gq = schedule_.gq && (schedule_.first_order || schedule_.need_y) && !gq_holds_sums;
  map_.gq = reserve(sums_gq ? group * row_bytes * static_cast<size_t>(problem().head_dim()) : 0);

  // One pass runs at a time, so its sums and tiles lie where those of the other do.
  const size_t row_sums = size_of.template operator()<RowSums<Real>>();
  const size_t column_sums = size_of.template operator()<ColumnSums<Real>>();
  const auto split_rows = static_cast<size_t>(row_waves_.max_split_tasks());
  const auto split_columns = static_cast<size_t>(column_waves_.max_split_tasks());
  map_.sums_stride = std::max(row_sums, column_sums);
  map_.sums = reserve(map_.sums_stride * std::max(split_rows, split_columns));
  map_.progress = reserve(sizeof(Progress) * static_cast<size_t>(column_waves_.max_tasks()));
  const size_t row_scratch = schedule_.rows ? size_of.template operator()<RowScratch<Real>>() : 0;
  const size_t column_scratch = schedule_.columns ? size_of.template operator()<ColumnScratch<Real>>() : 0;
  map_.scratch_stride = std::max(row_scratch, column_scratch);
  map_.scratch = reserve(map_.scratch_stride * static_cast<size_t>(threads_));
  map_.total = carver.bytes();
}

double CpuPlan::slice_flops(int slice) const {
  const double all = row_waves_.flops() + column_waves_.flops();
  if (all == 0) return 0;
  const int64_t in_group = slice % SlicesPerGroup();
  const double own = in_group < row_waves_.slices() ? row_waves_.SliceFlops(in_group)
                                                    : column_waves_.SliceFlops(in_group - row_waves_.slices());
  return computation().flops() * own / (all * static_cast<double>(groups_));
}

CpuPlan::Slice CpuPlan::At(int64_t slice) const {
  const int64_t group = slice / SlicesPerGroup();
  const int64_t in_group = slice % SlicesPerGroup();
  Slice found;
  found.probes = {group * group_probes_, std::min((group + 1) * group_probes_, probes_)};
  if (in_group < row_waves_.slices()) {
    found.pass = Pass::kRows;
    found.work = row_waves_.At(in_group);
  } else {
    found.pass = Pass::kColumns;
    found.work = column_waves_.At(in_group - row_waves_.slices());
  }
  const Wave& wave = found.work.wave;
  if (wave.split()) {
    const int64_t steps = StepsOf(found.pass, wave);
    const int64_t segment = found.work.segment;
    found.steps = {steps * segment / wave.segments, steps * (segment + 1) / wave.segments};
  } else {
    found.steps = {0, kAllSteps};
  }
  return found;
}

int64_t CpuPlan::StepsOf(Pass pass, const Wave& wave) const {
  int64_t steps = 0;
  if (pass == Pass::kRows) {
    if (!schedule_.row_tiles) return 0;
    for (int64_t i = 0; i < wave.tasks; ++i) {
      const TaskGrid::Task task = row_grid_.At(wave.first_task + i);
      steps = std::max(steps, KeyBlocksOf(task.b, task.rows).size());
    }
    return steps;
  }
  if (!schedule_.column_tiles) return 0;
  for (int64_t i = 0; i < wave.tasks;) {
    const TaskGrid::Task task = column_grid_.At(wave.first_task + i);
    steps = std::max(steps, StepsOf(RunOf(wave, i, task)));
    i += column_grid_.Tasks(task.b) - (task.block * column_grid_.heads() + task.head);
  }
  return steps;
}

IndexRange CpuPlan::KeyBlocksOf(int64_t b, IndexRange queries) const {
  return column_grid_.BlocksOf(problem().mask(b).KeysOf(queries));
}

IndexRange CpuPlan::QueryBlocksOf(int64_t b, IndexRange keys) const {
  return row_grid_.BlocksOf(problem().mask(b).QueriesOf(keys));
}

CpuPlan::Run CpuPlan::RunOf(const Wave& wave, int64_t task_in_wave, const TaskGrid::Task& task) const {
  // Tasks are numbered by block, then head, within a sequence.
  const int64_t heads = column_grid_.heads();
  const int64_t blocks = column_grid_.Blocks(task.b);
  const int64_t number = task.block * heads + task.head;
  const int64_t first = std::max<int64_t>(number - task_in_wave, 0);
  const int64_t last = std::min(number + wave.tasks - 1 - task_in_wave, blocks * heads - 1);
  Run run;
  run.key_blocks = {first / heads, last / heads + 1};
  run.query_blocks = QueryBlocksOf(task.b, {column_grid_.Rows(task.b, run.key_blocks.begin).begin,
                                            column_grid_.Rows(task.b, run.key_blocks.end - 1).end});
  run.follows = number - heads >= first;
  return run;
}

int64_t CpuPlan::StepsOf(const Run& run) const {
  const int64_t steps = problem().group() * run.query_blocks.size();
  return steps == 0 ? 0 : steps + run.key_blocks.size() - 1;
}

}  // namespace flashbob::cpu
