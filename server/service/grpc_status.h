// ToGrpcStatus: the one place where absl's and gRPC's statuses meet.
#ifndef FLASHBOB_SERVER_SERVICE_GRPC_STATUS_H_
#define FLASHBOB_SERVER_SERVICE_GRPC_STATUS_H_

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace flashbob::server {

// The longest text of an error, in bytes: it travels twice in metadata, where clients allow 8 KiB in all.
inline constexpr size_t kMaxErrorText = 1500;

// Code, text (cut to kMaxErrorText) and, where the status has payloads, a google.rpc.Status with them as details.
grpc::Status ToGrpcStatus(const absl::Status& status);

}  // namespace flashbob::server

#endif  // FLASHBOB_SERVER_SERVICE_GRPC_STATUS_H_
