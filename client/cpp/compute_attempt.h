// RunComputeAttempt: one try of one Compute call, from spec to last output byte. Internal to the library.
#ifndef FLASHBOB_CLIENT_CPP_COMPUTE_ATTEMPT_H_
#define FLASHBOB_CLIENT_CPP_COMPUTE_ATTEMPT_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <cstddef>
#include <functional>

#include "absl/status/statusor.h"
#include "flashbob/attention.h"
#include "flashbob/call.h"
#include "flashbob/cancellation.h"
#include "flashbob/v1/attention_service.pb.h"

namespace flashbob::client {

// What an attempt works on; all of it outlives the attempt.
struct ComputeAttempt {
  grpc::ChannelInterface& channel;
  const Request& request;
  const v1::ComputeSpec& spec;  // of the request
  size_t chunk_bytes;
  const std::function<void(const Progress&)>& progress;  // may be empty
  const Cancellation& cancellation;
};

// Makes the call with `context`, which has deadline and credentials, and blocks until it has ended. INTERNAL where the
// server breaks the protocol.
absl::StatusOr<Result> RunComputeAttempt(const ComputeAttempt& attempt, grpc::ClientContext& context);

}  // namespace flashbob::client

#endif  // FLASHBOB_CLIENT_CPP_COMPUTE_ATTEMPT_H_
