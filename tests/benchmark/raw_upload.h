// An upload by a client that puts its messages together from slices instead of protobuf's messages.
#ifndef FLASHBOB_TESTS_BENCHMARK_RAW_UPLOAD_H_
#define FLASHBOB_TESTS_BENCHMARK_RAW_UPLOAD_H_

#include <grpcpp/channel.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace flashbob {

// Sends the bytes as one tensor in chunks of 1 MiB, to a bare server: each copied once, into a slice of gRPC's, or,
// where not `copied`, left where they are. False where the call failed.
bool RawUpload(const std::shared_ptr<grpc::Channel>& channel, const std::string& token, bool copied,
               std::span<const std::byte> bytes);

}  // namespace flashbob

#endif  // FLASHBOB_TESTS_BENCHMARK_RAW_UPLOAD_H_
