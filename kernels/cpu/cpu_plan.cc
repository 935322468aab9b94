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

// A task's cost beside its tiles, in FLOP of products for each element of its rows: mostly waiting for memory.
constexpr double kFlopsPerRowElement = 64;

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
    return absl::ResourceExhaustedError(absl::StrCat("this is ", computation.flops(), " FLOP in ", slices,
                                                     " slices; at most ", std::numeric_limits<int>::max(),
                                                     " slices are served"));
  }
  return plan;
}

void CpuPlan::BuildWaves(const Limits& limits) {
  const int64_t head_dim = problem().head_dim();
  const int64_t value_dim = problem().value_dim();
  const WaveTable::Limits wave_limits = {threads_, limits.slice_flops};
  const double row_element_flops =
      kFlopsPerRowElement * static_cast<double>((head_dim + value_dim) * (1 + group_probes_));
  if (schedule_.rows) {
    const double pair_flops = schedule_.RowFlopsPerPair(head_dim, value_dim, group_probes_);
    const auto blocks_of = [&](const TaskGrid::Task& task) { return KeyBlocksOf(task.b, task.rows).size(); };
    row_waves_ = WaveTable(
        row_grid_, wave_limits,
        [&](const TaskGrid::Task& task) {
          const auto rows = static_cast<double>(task.rows.size());
          return rows * (row_element_flops + pair_flops * static_cast<double>(blocks_of(task) * tile_.keys));
        },
        [&](int64_t first_task, int64_t tasks) {
          int64_t steps = 0;
          TaskGrid::Task task = row_grid_.At(first_task);
          for (int64_t i = 0; i < tasks; ++i) {
            if (i > 0) task = row_grid_.Next(task);
            steps = std::max(steps, blocks_of(task));
          }
          return schedule_.row_tiles ? steps : 0;
        });
  }
  if (schedule_.columns) {
    const double pair_flops = schedule_.ColumnFlopsPerPair(head_dim, value_dim, group_probes_);
    const auto steps_of = [&](int64_t b, IndexRange keys) { return problem().group() * QueryBlocksOf(b, keys).size(); };
    column_waves_ = WaveTable(
        column_grid_, wave_limits,
        [&](const TaskGrid::Task& task) {
          const auto keys = static_cast<double>(task.rows.size());
          return keys *
                 (row_element_flops + pair_flops * static_cast<double>(steps_of(task.b, task.rows) * tile_.queries));
        },
        [&](int64_t first_task, int64_t tasks) {
          if (!schedule_.column_tiles) return int64_t{0};
          int64_t steps = 0;
          Wave wave;
          wave.first_task = first_task;
          wave.tasks = tasks;
          for (int64_t i = 0; i < tasks;) {
            const TaskGrid::Task task = column_grid_.At(first_task + i);
            steps = std::max(steps, StepsOf(RunOf(wave, i, task)));
            i += column_grid_.Blocks(task.b) * column_grid_.heads() - (task.block * column_grid_.heads() + task.head);
          }
          return steps;
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
  return found;
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
