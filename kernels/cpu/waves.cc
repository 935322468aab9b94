#include "kernels/cpu/waves.h"

#include <algorithm>
#include <cmath>

namespace flashbob::cpu {

WaveTable::WaveTable(const TaskGrid& grid, const Limits& limits, TaskFlops task_flops, WaveSteps wave_steps) {
  TaskGrid::Task task;
  double next_flops = 0;  // of `task`
  int64_t next = 0;       // number of `task`
  const auto advance = [&] {
    if (++next == grid.size()) return;
    task = grid.Next(task);
    next_flops = task_flops(task);
  };
  if (grid.size() > 0) {
    task = grid.At(0);
    next_flops = task_flops(task);
  }
  while (next < grid.size()) {
    Wave wave;
    wave.first_task = next;
    // A whole number of tasks a thread, as many as fit, but one a thread in any case.
    while (next < grid.size()) {
      const int64_t round = std::min<int64_t>(limits.threads, grid.size() - next);
      const TaskGrid::Task round_task = task;
      const double round_next_flops = next_flops;
      double round_flops = 0;
      for (int64_t i = 0; i < round; ++i) {
        round_flops += next_flops;
        advance();
      }
      if (wave.tasks > 0 && wave.flops + round_flops > limits.slice_flops) {
        next -= round;
        task = round_task;
        next_flops = round_next_flops;
        break;
      }
      wave.tasks += round;
      wave.flops += round_flops;
    }
    wave.steps = wave_steps(wave.first_task, wave.tasks);
    wave.segments = std::clamp<int64_t>(std::llround(std::ceil(wave.flops / limits.slice_flops)), 1,
                                        std::max<int64_t>(wave.steps, 1));
    Add(wave);
  }
}

void WaveTable::Add(Wave wave) {
  wave.first_slice = slices_;
  slices_ += wave.segments;
  flops_ += wave.flops;
  max_tasks_ = std::max(max_tasks_, wave.tasks);
  if (wave.split()) max_split_tasks_ = std::max(max_split_tasks_, wave.tasks);
  waves_.push_back(wave);
}

const Wave& WaveTable::WaveOf(int64_t slice) const {
  const auto after = std::upper_bound(waves_.begin(), waves_.end(), slice,
                                      [](int64_t number, const Wave& wave) { return number < wave.first_slice; });
  return *(after - 1);
}

WaveTable::Slice WaveTable::At(int64_t slice) const {
  const Wave& wave = WaveOf(slice);
  const int64_t segment = slice - wave.first_slice;
  Slice found;
  found.wave = &wave;
  found.steps = {wave.steps * segment / wave.segments, wave.steps * (segment + 1) / wave.segments};
  found.first = segment == 0;
  found.last = segment + 1 == wave.segments;
  return found;
}

double WaveTable::SliceFlops(int64_t slice) const {
  const Wave& wave = WaveOf(slice);
  if (!wave.split()) return wave.flops;
  return wave.flops * static_cast<double>(At(slice).steps.size()) / static_cast<double>(wave.steps);
}

}  // namespace flashbob::cpu
