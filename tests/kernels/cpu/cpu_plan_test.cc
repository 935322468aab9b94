// Plans: every tile is in one slice, slices are bounded, and what no machine can do is refused at once.
#include "kernels/cpu/cpu_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <vector>

#include "kernels/conformance/case.h"

namespace flashbob::cpu {
namespace {

using conformance::CaseSpec;
using enum TensorName;

constexpr int64_t kMuchMemory = int64_t{1} << 46;

CaseSpec DoubleBackward(int64_t heads, int64_t length, int64_t head_dim) {
  CaseSpec spec;
  spec.operation = Operation::kDoubleBackward;
  spec.optional_inputs = {kUq, kUk, kUv};
  spec.heads = spec.kv_heads = heads;
  spec.query_len = spec.key_len = length;
  spec.head_dim = spec.value_dim = head_dim;
  return spec;
}

absl::StatusOr<std::unique_ptr<const CpuPlan>> MakePlan(const CaseSpec& spec, const CpuPlan::Limits& limits) {
  return CpuPlan::Create(conformance::MakeComputation(spec).value(), limits);
}

// Problems of every kind that cuts differently.
std::vector<CaseSpec> Problems() {
  std::vector<CaseSpec> problems = {DoubleBackward(4, 300, 16), DoubleBackward(1, 5000, 64), DoubleBackward(3, 1, 8)};
  CaseSpec grouped = DoubleBackward(6, 700, 32);
  grouped.kv_heads = 2;
  grouped.options.window_right = 0;
  problems.push_back(grouped);
  CaseSpec window = DoubleBackward(2, 3000, 16);
  window.key_len = 900;
  window.options.window_left = 100;
  window.options.window_right = 7;
  problems.push_back(window);
  CaseSpec packed = DoubleBackward(4, 0, 16);
  packed.options.layout = Layout::kTHD;
  packed.options.cu_seqlens_q = {0, 0, 700, 701, 701, 1500};
  packed.options.cu_seqlens_k = {0, 5, 5, 1000, 1000, 1100};
  packed.options.probes = 19;
  problems.push_back(packed);
  // Sequences that share waves: short ones, and few tasks each.
  CaseSpec short_packed = DoubleBackward(3, 0, 8);
  short_packed.options.layout = Layout::kTHD;
  for (int64_t b = 0; b <= 500; ++b) {
    short_packed.options.cu_seqlens_q.push_back(b * (b % 7));
    short_packed.options.cu_seqlens_k.push_back(b * (b % 7));
  }
  std::sort(short_packed.options.cu_seqlens_q.begin(), short_packed.options.cu_seqlens_q.end());
  std::sort(short_packed.options.cu_seqlens_k.begin(), short_packed.options.cu_seqlens_k.end());
  short_packed.options.window_right = 0;
  problems.push_back(short_packed);
  for (int64_t length : {1, 500, 3000}) {
    CaseSpec batched = DoubleBackward(3, length, 8);
    batched.batch = 9;
    batched.options.window_right = 0;
    problems.push_back(batched);
  }
  CaseSpec jvp = grouped;
  jvp.operation = Operation::kJvp;
  jvp.optional_inputs = {kTq, kTk, kTv, kDo, kTdo, kO, kLse};
  problems.push_back(jvp);
  CaseSpec backward = window;
  backward.operation = Operation::kBackward;
  backward.optional_inputs = {};
  problems.push_back(backward);
  return problems;
}

TEST(CpuPlanTest, SlicesOfAWaveCoverItsStepsOnceInOrder) {
  for (const CaseSpec& spec : Problems()) {
    for (int threads : {1, 3, 16}) {
      for (double slice_flops : {1.0, 1e7, 1e12}) {
        const auto plan = MakePlan(spec, {threads, slice_flops, kMuchMemory}).value();
        // Of each pass and group of probes: the task that is due next.
        std::map<std::pair<CpuPlan::Pass, int64_t>, int64_t> due;
        int64_t step = 0;
        for (int i = 0; i < plan->num_slices(); ++i) {
          const CpuPlan::Slice slice = plan->At(i);
          int64_t& task = due[{slice.pass, slice.probes.begin}];
          ASSERT_EQ(slice.work.wave.first_task, task);
          ASSERT_EQ(slice.steps.begin, slice.work.first() ? 0 : step);
          step = slice.steps.end;
          if (!slice.work.last()) continue;
          ASSERT_GE(step, plan->StepsOf(slice.pass, slice.work.wave));
          task += slice.work.wave.tasks;
        }
        for (const auto& [pass, tasks] : due) {
          const TaskGrid& grid = pass.first == CpuPlan::Pass::kRows ? plan->row_grid() : plan->column_grid();
          EXPECT_EQ(tasks, grid.size());
        }
        const int64_t groups =
            (plan->problem().probe_count() + plan->max_group_probes() - 1) / plan->max_group_probes();
        EXPECT_EQ(static_cast<int64_t>(due.size()), 2 * groups);
      }
    }
  }
}

TEST(CpuPlanTest, TasksAreEveryBlockOfEveryHeadOnce) {
  for (const CaseSpec& spec : Problems()) {
    const auto plan = MakePlan(spec, {1, 1e9, kMuchMemory}).value();
    const AttentionProblem& problem = plan->problem();
    for (const TaskGrid* grid : {&plan->row_grid(), &plan->column_grid()}) {
      const bool queries = grid == &plan->row_grid();
      std::map<std::pair<int64_t, int64_t>, int64_t> rows;  // of each sequence and head, met so far
      for (int64_t i = 0; i < grid->size(); ++i) {
        const TaskGrid::Task task = grid->At(i);
        int64_t& met = rows[{task.b, task.head}];
        ASSERT_EQ(task.rows.begin, met);
        ASSERT_FALSE(task.rows.empty());
        met = task.rows.end;
      }
      for (const auto& [key, met] : rows) {
        EXPECT_EQ(met, queries ? problem.query_len(key.first) : problem.key_len(key.first));
      }
      int64_t total = 0;
      for (const auto& [key, met] : rows) total += met;
      EXPECT_EQ(total, queries ? problem.heads() * problem.total_queries() : problem.kv_heads() * problem.total_keys());
    }
  }
}

TEST(CpuPlanTest, SliceFlopsAddUpToTheComputations) {
  for (const CaseSpec& spec : Problems()) {
    for (double slice_flops : {1e6, 1e9}) {
      const auto plan = MakePlan(spec, {2, slice_flops, kMuchMemory}).value();
      double sum = 0;
      for (int i = 0; i < plan->num_slices(); ++i) {
        EXPECT_GE(plan->slice_flops(i), 0);
        sum += plan->slice_flops(i);
      }
      EXPECT_NEAR(sum, plan->computation().flops(), 1e-9 * sum);
    }
  }
}

TEST(CpuPlanTest, SlicesOfLongProblemsAreBounded) {
  CaseSpec spec = DoubleBackward(1, 65536, 64);
  const double slice_flops = 3e9;
  for (int64_t window : {int64_t{-1}, int64_t{4095}}) {
    spec.options.window_left = window;
    spec.options.window_right = window < 0 ? -1 : 0;
    const auto plan = MakePlan(spec, {2, slice_flops, kMuchMemory}).value();
    double longest = 0;
    for (int i = 0; i < plan->num_slices(); ++i) longest = std::max(longest, plan->slice_flops(i));
    EXPECT_LE(longest, 1.1 * slice_flops);
    EXPECT_LE(plan->num_slices() * slice_flops, 3 * plan->computation().flops());
  }
}

TEST(CpuPlanTest, AMillionQueriesArePlannedByArithmetic) {
  const auto start = std::chrono::steady_clock::now();
  const auto plan = MakePlan(DoubleBackward(1, int64_t{1} << 20, 64), {2, 3e9, kMuchMemory}).value();
  EXPECT_GT(plan->num_slices(), 100000);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
  // Past the tensors: L, D, c and r of each row and some tiles, 64 MiB.
  EXPECT_LT(plan->workspace_bytes(), (int64_t{1} << 20) * 16 + (int64_t{1} << 26));
}

CaseSpec ManyShortSequences(int64_t sequences, int64_t heads) {
  CaseSpec spec = DoubleBackward(heads, 0, 4);
  spec.options.layout = Layout::kTHD;
  for (int64_t b = 0; b <= sequences; ++b) {
    spec.options.cu_seqlens_q.push_back(b);
    spec.options.cu_seqlens_k.push_back(b);
  }
  return spec;
}

TEST(CpuPlanTest, PlanningCostsNoMoreForMoreTasks) {
  CaseSpec batch = DoubleBackward(1, 1, 1);
  batch.batch = 200'000'000;
  batch.dtype = DType::kBFloat16;
  CaseSpec heads = DoubleBackward(200'000'000, 1, 1);
  CaseSpec rows = DoubleBackward(1, 1'000'000'000, 1);
  rows.key_len = 1;
  CaseSpec band = DoubleBackward(1, 200'000'000, 1);
  band.options.window_left = band.options.window_right = 3;
  CaseSpec most = DoubleBackward(1, 1, 1);
  most.operation = Operation::kForward;
  most.optional_inputs = {};
  most.batch = int64_t{1} << 40;
  for (const CaseSpec& spec : {batch, heads, rows, band, most}) {
    const auto start = std::chrono::steady_clock::now();
    const auto plan = MakePlan(spec, {2, 3e9, kMuchMemory});
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_LE((*plan)->row_waves().stretches(), 64);
    EXPECT_LE((*plan)->column_waves().stretches(), 64);
  }
  const auto packed = MakePlan(ManyShortSequences(65536, 64), {2, 3e9, kMuchMemory}).value();
  EXPECT_LE(packed->row_waves().stretches(), 65536);
}

TEST(CpuPlanTest, SlicesOfManyTinyTasksAreBounded) {
  CaseSpec batch = DoubleBackward(1, 1, 1);
  batch.batch = 1'000'000;
  CaseSpec rows = DoubleBackward(1, 10'000'000, 1);
  rows.operation = Operation::kForward;
  rows.optional_inputs = {};
  rows.key_len = 1;
  // 15 ms of two threads, at a microsecond a task and 50 ns a row.
  constexpr double kThreadFlopsPerSecond = 1e11;
  const CpuPlan::Limits limits = {2, 2 * 0.015 * kThreadFlopsPerSecond, kMuchMemory, kThreadFlopsPerSecond};
  for (const CaseSpec& spec : {batch, rows, ManyShortSequences(60'000, 64)}) {
    const auto plan = MakePlan(spec, limits).value();
    for (int i = 0; i < plan->num_slices(); ++i) {
      const CpuPlan::Slice slice = plan->At(i);
      const TaskGrid& grid = slice.pass == CpuPlan::Pass::kRows ? plan->row_grid() : plan->column_grid();
      ASSERT_LE(slice.work.wave.tasks, 30'000);
      ASSERT_LE(slice.work.wave.tasks * grid.At(slice.work.wave.first_task).rows.size(), 600'000);
    }
  }
}

TEST(CpuPlanTest, WhatDoesNotFitIsRefusedWithTheNumbers) {
  const absl::Status huge = MakePlan(DoubleBackward(1, int64_t{1} << 40, 64), {2, 3e9, int64_t{1} << 35}).status();
  EXPECT_EQ(huge.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(huge.message().find("34359738368 bytes of memory"), std::string::npos) << huge;

  // Inputs and outputs fit, the workspace does not.
  const CaseSpec spec = DoubleBackward(1, 4096, 64);
  const auto computation = conformance::MakeComputation(spec).value();
  const int64_t tensors = computation.input_bytes() + computation.output_bytes();
  EXPECT_EQ(MakePlan(spec, {2, 3e9, tensors + 100}).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(MakePlan(spec, {2, 3e9, tensors + (int64_t{1} << 24)}).ok());

  // It fits, but would not end: more slices than an int counts.
  EXPECT_EQ(MakePlan(DoubleBackward(1, int64_t{1} << 28, 1), {2, 1e6, kMuchMemory}).status().code(),
            absl::StatusCode::kFailedPrecondition);
  CaseSpec countless = DoubleBackward(1, int64_t{1} << 24, 1);
  countless.batch = int64_t{1} << 20;
  const absl::Status many = MakePlan(countless, {2, 1, int64_t{1} << 62}).status();
  EXPECT_EQ(many.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(many.message().find("at most 2147483647 slices"), std::string::npos) << many;
}

TEST(CpuPlanTest, EmptyProblemsHaveNothingToDo) {
  CaseSpec spec = DoubleBackward(2, 5, 8);
  spec.batch = 0;
  const auto plan = MakePlan(spec, {2, 1e9, kMuchMemory}).value();
  EXPECT_EQ(plan->num_slices(), 0);
}

}  // namespace
}  // namespace flashbob::cpu
