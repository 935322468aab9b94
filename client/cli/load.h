// RunLoad: calls one computation in a closed loop from several threads and takes the time. Also what it measured.
#ifndef FLASHBOB_CLIENT_CLI_LOAD_H_
#define FLASHBOB_CLIENT_CLI_LOAD_H_

#include <chrono>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/backend.h"

namespace flashbob::cli {

struct Sample {
  std::chrono::nanoseconds latency{0};  // of the call, as its caller sees it
  std::chrono::nanoseconds queue{0};    // of that, by the backend's account
  std::chrono::nanoseconds compute{0};
};

struct LoadResult {
  std::vector<Sample> samples;  // of every call, in no order
  std::chrono::nanoseconds elapsed{0};
};

// Each of `concurrency` threads makes one call that is not counted, waits for the others, and then calls again and
// again until `duration` has passed; calls under way then are finished and counted, and every thread counts one at
// least. The first error ends it. `call` gets the thread's number; `progress`, the share of the time that has passed.
absl::StatusOr<LoadResult> RunLoad(int concurrency, std::chrono::nanoseconds duration,
                                   const std::function<absl::StatusOr<Outcome>(int thread)>& call,
                                   const std::function<void(double)>& progress);

// The smallest latency that a share (0 to 1) of the samples does not exceed; at least one sample.
std::chrono::nanoseconds Percentile(std::vector<Sample> samples, double share);

}  // namespace flashbob::cli

#endif  // FLASHBOB_CLIENT_CLI_LOAD_H_
