// ProblemFlags: the flags that say what the tensors' shapes do not; the same for every command that has a problem.
#ifndef FLASHBOB_CLIENT_CLI_PROBLEM_FLAGS_H_
#define FLASHBOB_CLIENT_CLI_PROBLEM_FLAGS_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/problem.h"

namespace flashbob::cli {

struct ProblemFlags {
  std::string layout = "BHND";
  std::optional<std::string> causal;
  std::optional<std::string> window;
  std::optional<std::string> align;
  std::optional<double> scale;
  int64_t probes = 0;
  bool tf32 = false;
  bool deterministic = false;
};

// Adds the flags to a command; what they are given ends in `flags`, which must outlive the parse.
void AddProblemFlags(CLI::App& command, ProblemFlags& flags);

// INVALID_ARGUMENT, naming the flags, where they contradict each other or a value makes no sense.
absl::StatusOr<ProblemOptions> ToProblemOptions(const ProblemFlags& flags);

}  // namespace flashbob::cli

#endif  // FLASHBOB_CLIENT_CLI_PROBLEM_FLAGS_H_
