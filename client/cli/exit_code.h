// Exit codes of the `flashbob` program, as its help documents them.
#ifndef FLASHBOB_CLIENT_CLI_EXIT_CODE_H_
#define FLASHBOB_CLIENT_CLI_EXIT_CODE_H_

#include "absl/status/status.h"

namespace flashbob::cli {

inline constexpr int kSuccess = 0;
inline constexpr int kFailure = 1;      // refused or failed computation; check: an output over its bar
inline constexpr int kUsage = 2;        // flags that contradict each other or make no sense; files; standard output
inline constexpr int kUnreachable = 3;  // no server there, or it went away

// The code of an error that a backend gave.
inline int ExitCodeOf(const absl::Status& status) {
  return status.code() == absl::StatusCode::kUnavailable ? kUnreachable : kFailure;
}

// The code where no backend could be had: flags that name none, else no server.
inline int OpenExitCodeOf(const absl::Status& status) {
  const bool wrong = absl::IsInvalidArgument(status) || absl::IsNotFound(status);
  return wrong ? kUsage : ExitCodeOf(status);
}

}  // namespace flashbob::cli

#endif  // FLASHBOB_CLIENT_CLI_EXIT_CODE_H_
