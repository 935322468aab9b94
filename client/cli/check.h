// RunCheck: conformance cases computed by a backend, and the reports as table and JSON.
#ifndef FLASHBOB_CLIENT_CLI_CHECK_H_
#define FLASHBOB_CLIENT_CLI_CHECK_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/backend.h"
#include "client/cli/console.h"
#include "kernels/conformance/run.h"

namespace flashbob::cli {

// A case's report, and what failed where that is more than an error over its bar.
struct CheckedCase {
  conformance::CaseReport report;
  std::string failure;
};

// The report of every case. A case that the backend refuses has failed; a backend that is UNAVAILABLE ends the check
// with its status: the rest of the cases would say the same.
absl::StatusOr<std::vector<CheckedCase>> RunCheck(Backend& backend,
                                                  const std::vector<conformance::ConformanceCase>& cases,
                                                  const ProgressCallback& progress);

bool AllOk(const std::vector<CheckedCase>& checked);

// {"ok", "cases": [{"operation", "dtype", "mask", "shape", "outputs": {name: {"error", "bar"}}, "bar", "ok"}]}; a case
// that failed otherwise also has "failure".
Json ToJson(const std::vector<CheckedCase>& checked);

// A line for each output of each operation and dtype: of all cases the error that is largest in units of its bar.
std::string ToTable(const std::vector<CheckedCase>& checked);

// One line.
std::string ToText(const CheckedCase& checked);

}  // namespace flashbob::cli

#endif  // FLASHBOB_CLIENT_CLI_CHECK_H_
