// Runs conformance cases on anything that computes, and judges what came back.
//
//   case -> inputs, poisoned outputs -> runner (an engine, a server, ...) -> errors against the reference -> CaseReport
//
// Free functions, no state; cases may run on several threads at a time.
#ifndef FLASHBOB_KERNELS_CONFORMANCE_RUN_H_
#define FLASHBOB_KERNELS_CONFORMANCE_RUN_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/conformance/case.h"
#include "kernels/conformance/error.h"
#include "kernels/engine.h"

namespace flashbob::conformance {

// Computes: reads the inputs and writes the wanted outputs, all in host memory aligned to kTensorAlignment.
using Runner = std::function<absl::Status(const Computation&, const TensorPointers&)>;

// A runner over an engine, which must outlive it.
Runner RunnerOf(Engine& engine);

struct OutputReport {
  TensorName name;
  double error = 0;  // infinite where NaN or infinite values are not where the reference has them
  double bar = 0;
  int64_t unwritten = 0;  // elements that still are as they were before the call
  bool ok = false;
};

struct CaseReport {
  std::string operation;
  std::string dtype;
  std::string mask;
  std::string shape;
  std::vector<OutputReport> outputs;
  double bar = 0;      // the largest of the outputs'
  std::string defect;  // what else is wrong: a write outside of an output, a changed input
  bool ok = false;     // every output is, and there is no defect

  std::string ToString() const;  // one line, for logs and failing tests
};

// The report of one case. Not OK where the runner's status is not, or where the reference cannot take the case.
absl::StatusOr<CaseReport> RunCase(const ConformanceCase& conformance_case, BarKind kind, const Runner& runner);

}  // namespace flashbob::conformance

#endif  // FLASHBOB_KERNELS_CONFORMANCE_RUN_H_
