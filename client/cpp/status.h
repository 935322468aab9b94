// FromGrpcStatus: the one place where gRPC's status becomes ours. Internal to the library.
#ifndef FLASHBOB_CLIENT_CPP_STATUS_H_
#define FLASHBOB_CLIENT_CPP_STATUS_H_

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace flashbob::client {

// Code and text as they are; the details of `grpc-status-details-bin` become payloads under their type URLs, where
// errors.h finds them.
absl::Status FromGrpcStatus(const grpc::Status& status);

}  // namespace flashbob::client

#endif  // FLASHBOB_CLIENT_CPP_STATUS_H_
