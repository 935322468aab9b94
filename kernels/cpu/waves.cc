#include "kernels/cpu/waves.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace flashbob::cpu {
namespace {

// Of a sequence: so many that their tasks cost about the same under any mask.
constexpr int64_t kSequenceStretches = 64;
// Of all sequences, where these are packed, but one for each in any case.
constexpr int64_t kPackedStretches = 4096;
// Rounds of a task for each thread. Sequences of fewer tasks share waves with their neighbours, lest threads have
// nothing to do at the end of each.
constexpr int64_t kFewRounds = 8;

}  // namespace

WaveTable::WaveTable(const TaskGrid& grid, const Limits& limits, BoundOf bound_of) {
  if (grid.size() == 0) return;
  if (grid.packed()) {
    AddPacked(grid, limits, bound_of);
  } else {
    AddBatched(grid, limits, bound_of);
  }
  const auto periods = static_cast<double>(grid.size() / period_tasks_);
  slices_ =
      static_cast<int64_t>(std::min(periods * static_cast<double>(period_slices_), static_cast<double>(kManySlices)));
  flops_ = periods * period_flops_;
}

void WaveTable::AddBatched(const TaskGrid& grid, const Limits& limits, BoundOf bound_of) {
  const int64_t tasks = grid.Tasks(0);
  if (tasks <= kFewRounds * limits.threads) {
    const TaskBound bound = bound_of(0, {0, grid.Blocks(0)});
    Add(Cut(grid.size(), bound, bound.flops * static_cast<double>(grid.size()), limits));
    return;
  }
  AddSequence(grid, 0, kSequenceStretches, limits, bound_of);
  const double sequences_per_slice = std::floor(limits.slice_flops / period_flops_);
  if (sequences_per_slice < 2) return;
  // One stretch of waves of whole sequences instead.
  Stretch stretch;
  stretch.tasks = grid.size();
  const auto sequences = static_cast<double>(grid.size() / tasks);
  stretch.wave_tasks = static_cast<int64_t>(std::min(sequences_per_slice, sequences)) * tasks;
  stretch.task_flops = period_flops_ / static_cast<double>(tasks);
  *this = WaveTable();
  Add(stretch);
}

void WaveTable::AddPacked(const TaskGrid& grid, const Limits& limits, BoundOf bound_of) {
  const int64_t few = kFewRounds * limits.threads;
  const int64_t stretches = std::clamp<int64_t>(kPackedStretches / grid.sequences(), 1, kSequenceStretches);
  // Neighbours that share waves.
  int64_t tasks = 0;
  TaskBound bound;
  double flops = 0;
  const auto flush = [&] {
    if (tasks > 0) {
      Stretch stretch = Cut(tasks, bound, flops, limits);
      const bool fits = std::max(flops, bound.flops * limits.threads) <= limits.slice_flops;
      if (fits) stretch.wave_tasks = tasks;
      Add(stretch);
    }
    tasks = 0;
    bound = {};
    flops = 0;
  };
  for (int64_t b = 0; b < grid.sequences(); ++b) {
    const int64_t own_tasks = grid.Tasks(b);
    if (own_tasks == 0) continue;
    const TaskBound own = bound_of(b, {0, grid.Blocks(b)});
    const double own_flops = own.flops * static_cast<double>(own_tasks);
    if (tasks + own_tasks > few && flops + own_flops > limits.slice_flops) flush();
    if (own_tasks > few && own_flops > limits.slice_flops) {
      AddSequence(grid, b, stretches, limits, bound_of);
      continue;
    }
    tasks += own_tasks;
    bound = {std::max(bound.steps, own.steps), std::max(bound.flops, own.flops)};
    flops += own_flops;
  }
  flush();
}

void WaveTable::AddSequence(const TaskGrid& grid, int64_t b, int64_t stretches, const Limits& limits,
                            BoundOf bound_of) {
  const int64_t tasks = grid.Tasks(b);
  const int64_t rounds = (tasks + limits.threads - 1) / limits.threads;
  const int64_t step = (rounds + stretches - 1) / stretches * limits.threads;
  int64_t begin = 0;
  TaskBound bound;
  const auto add_until = [&](int64_t end) {
    if (end > begin) Add(Cut(end - begin, bound, bound.flops * static_cast<double>(end - begin), limits));
    begin = end;
  };
  for (int64_t task = 0; task < tasks; task += step) {
    const int64_t last = std::min(task + step, tasks) - 1;
    const TaskBound own = bound_of(b, {task / grid.heads(), last / grid.heads() + 1});
    if (own == bound) continue;
    add_until(task);
    bound = own;
  }
  add_until(tasks);
}

WaveTable::Stretch WaveTable::Cut(int64_t tasks, const TaskBound& bound, double flops, const Limits& limits) {
  Stretch stretch;
  stretch.tasks = tasks;
  stretch.task_flops = flops / static_cast<double>(tasks);
  // A slice takes as long as its busiest thread: what threads without a task could do is not to be had.
  const double round_flops = bound.flops * limits.threads;
  const double rounds = std::clamp(std::floor(limits.slice_flops / round_flops), 1.0, 1e9);
  stretch.wave_tasks = std::min(static_cast<int64_t>(rounds) * limits.threads, tasks);
  const double segments = std::ceil(round_flops / limits.slice_flops);
  stretch.segments = static_cast<int64_t>(std::clamp(segments, 1.0, std::max(static_cast<double>(bound.steps), 1.0)));
  return stretch;
}

void WaveTable::Add(Stretch stretch) {
  stretch.first_task = period_tasks_;
  stretch.first_slice = period_slices_;
  const double waves = std::ceil(static_cast<double>(stretch.tasks) / static_cast<double>(stretch.wave_tasks));
  const double slices = static_cast<double>(period_slices_) + waves * static_cast<double>(stretch.segments);
  period_tasks_ += stretch.tasks;
  period_slices_ = static_cast<int64_t>(std::min(slices, static_cast<double>(kManySlices)));
  period_flops_ += stretch.task_flops * static_cast<double>(stretch.tasks);
  max_tasks_ = std::max(max_tasks_, stretch.wave_tasks);
  if (stretch.segments > 1) max_split_tasks_ = std::max(max_split_tasks_, stretch.wave_tasks);
  stretches_.push_back(stretch);
}

WaveTable::Found WaveTable::Find(int64_t slice) const {
  const int64_t period = slice / period_slices_;
  slice %= period_slices_;
  const auto after = std::upper_bound(stretches_.begin(), stretches_.end(), slice,
                                      [](int64_t number, const Stretch& next) { return number < next.first_slice; });
  const Stretch& stretch = *(after - 1);
  slice -= stretch.first_slice;
  const int64_t first = slice / stretch.segments * stretch.wave_tasks;
  Slice found;
  found.wave.first_task = period * period_tasks_ + stretch.first_task + first;
  found.wave.tasks = std::min(stretch.wave_tasks, stretch.tasks - first);
  found.wave.segments = stretch.segments;
  found.segment = slice % stretch.segments;
  return {stretch, found};
}

WaveTable::Slice WaveTable::At(int64_t slice) const { return Find(slice).slice; }

double WaveTable::SliceFlops(int64_t slice) const {
  const Found found = Find(slice);
  return found.stretch.task_flops * static_cast<double>(found.slice.wave.tasks) /
         static_cast<double>(found.stretch.segments);
}

}  // namespace flashbob::cpu
