#include "client/cli/check.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"

namespace flashbob::cli {
namespace {

using conformance::BarKind;
using conformance::CaseReport;
using conformance::ConformanceCase;
using conformance::OutputReport;

// What a backend's errors are judged by: those of a CPU where all its devices are CPUs.
absl::StatusOr<BarKind> BarKindOf(Backend& backend) {
  FLASHBOB_ASSIGN_OR_RETURN(const client::ServerInfo info, backend.Info());
  for (const client::Device& device : info.devices) {
    if (!device.name.starts_with("cpu")) return BarKind::kGpu;
  }
  return BarKind::kCpu;
}

Json ToJson(const CheckedCase& checked) {
  const CaseReport& report = checked.report;
  Json outputs = Json::object();
  for (const OutputReport& output : report.outputs) {
    outputs[Name(output.name)] = {{"error", output.error}, {"bar", output.bar}};
  }
  Json json = {{"operation", report.operation},
               {"dtype", report.dtype},
               {"mask", report.mask},
               {"shape", report.shape},
               {"outputs", outputs},
               {"bar", report.bar},
               {"ok", report.ok}};
  if (!checked.failure.empty()) json["failure"] = checked.failure;
  return json;
}

}  // namespace

absl::StatusOr<std::vector<CheckedCase>> RunCheck(Backend& backend, const std::vector<ConformanceCase>& cases,
                                                  const ProgressCallback& progress) {
  FLASHBOB_ASSIGN_OR_RETURN(const BarKind kind, BarKindOf(backend));
  const conformance::Runner runner = [&](const Computation& computation, const TensorPointers& tensors) {
    return backend.Compute(computation, tensors, {}).status();
  };
  std::vector<CheckedCase> checked;
  for (const ConformanceCase& each : cases) {
    progress(static_cast<double>(checked.size()) / static_cast<double>(cases.size()),
             absl::StrCat(Name(each.spec().operation), " ", Name(each.spec().dtype), " ", each.spec().mask));
    absl::StatusOr<CaseReport> report = conformance::RunCase(each, kind, runner);
    if (report.ok()) {
      checked.push_back({*report, report->defect});
      continue;
    }
    if (report.status().code() == absl::StatusCode::kUnavailable) return report.status();
    CaseReport refused;
    refused.operation = Name(each.spec().operation);
    refused.dtype = Name(each.spec().dtype);
    refused.mask = each.spec().mask;
    refused.shape = each.shape();
    checked.push_back({refused, report.status().ToString(absl::StatusToStringMode::kWithNoExtraData)});
  }
  return checked;
}

bool AllOk(const std::vector<CheckedCase>& checked) {
  return std::all_of(checked.begin(), checked.end(), [](const CheckedCase& each) { return each.report.ok; });
}

Json ToJson(const std::vector<CheckedCase>& checked) {
  Json cases = Json::array();
  for (const CheckedCase& each : checked) cases.push_back(ToJson(each));
  return {{"ok", AllOk(checked)}, {"cases", cases}};
}

std::string ToTable(const std::vector<CheckedCase>& checked) {
  struct Row {
    int cases = 0;
    double error = 0;
    double bar = 0;
    bool ok = true;
  };
  std::map<std::tuple<std::string, std::string, TensorName>, Row> rows;
  for (const CheckedCase& each : checked) {
    for (const OutputReport& output : each.report.outputs) {
      Row& row = rows[{each.report.operation, each.report.dtype, output.name}];
      if (++row.cases == 1 || output.error / output.bar > row.error / row.bar) {
        row.error = output.error;
        row.bar = output.bar;
      }
      row.ok = row.ok && output.ok;
    }
  }
  std::string text = absl::StrFormat("%-16s %-5s %-6s %5s %10s %10s %10s\n", "operation", "dtype", "output", "cases",
                                     "error", "bar", "error/bar");
  for (const auto& [key, row] : rows) {
    const auto& [operation, dtype, output] = key;
    absl::StrAppend(&text,
                    absl::StrFormat("%-16s %-5s %-6s %5d %10.2e %10.2e %10.2g%s\n", operation, dtype, Name(output),
                                    row.cases, row.error, row.bar, row.error / row.bar, row.ok ? "" : "  OVER"));
  }
  return text;
}

std::string ToText(const CheckedCase& checked) {
  const std::string& failure = checked.report.outputs.empty() ? checked.failure : "";
  return absl::StrCat(checked.report.ToString(), failure.empty() ? "" : " ", failure, "\n");
}

}  // namespace flashbob::cli
