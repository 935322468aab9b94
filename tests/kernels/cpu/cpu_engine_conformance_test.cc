// The CPU engine against the fp64 reference, on every case that conformance knows.
#include <gtest/gtest.h>

#include "kernels/conformance/cases.h"
#include "kernels/conformance/run.h"
#include "kernels/cpu/cpu_engine.h"
#include "tests/seed.h"

namespace flashbob {
namespace {

using conformance::BarKind;
using conformance::CaseReport;
using conformance::ConformanceCase;

void ExpectWithinBars(const cpu::CpuEngineOptions& options, const std::vector<ConformanceCase>& cases) {
  const std::unique_ptr<Engine> engine = cpu::CreateCpuEngine(options);
  for (const ConformanceCase& each : cases) {
    const absl::StatusOr<CaseReport> report = RunCase(each, BarKind::kCpu, conformance::RunnerOf(*engine));
    ASSERT_TRUE(report.ok()) << each.shape() << ": " << report.status();
    EXPECT_TRUE(report->ok) << report->ToString();
  }
}

TEST(CpuEngineConformanceTest, QuickCasesKeepTheirBars) {
  ExpectWithinBars({}, conformance::QuickCases(testing_seed::Seed()));
}

TEST(CpuEngineConformanceTest, FullCasesKeepTheirBars) {
  ExpectWithinBars({}, conformance::FullCases(testing_seed::Seed()));
}

// Slices of next to nothing: every wave is split, every running sum crosses slices.
TEST(CpuEngineConformanceTest, SlicesOfOneTileKeepTheBars) {
  ExpectWithinBars({.threads = 3, .slice_flops = 1}, conformance::QuickCases(testing_seed::Seed() + 1));
}

}  // namespace
}  // namespace flashbob
