// Requests and answers in the words of proto/flashbob/v1. Internal to the library.
#ifndef FLASHBOB_CLIENT_CPP_WIRE_H_
#define FLASHBOB_CLIENT_CPP_WIRE_H_

#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "flashbob/attention.h"
#include "flashbob/server_info.h"
#include "flashbob/v1/attention_service.pb.h"

namespace flashbob::client {

// INVALID_ARGUMENT where a name is no tensor's, or an input's bytes are not what its shape needs. Whatever else can be
// wrong is for the server to say.
absl::StatusOr<v1::ComputeSpec> ToSpec(const Request& request);

// The same for tensors to be stored.
absl::StatusOr<v1::PutTensorsSpec> ToPutSpec(const std::vector<NamedTensor>& tensors, std::chrono::seconds lease);

// A tensor that the server keeps under `handle`. INTERNAL where its dtype is unknown.
absl::StatusOr<StoredTensor> ToStoredTensor(const v1::TensorSpec& tensor, const std::string& handle);

// The name of a tensor that the server announced, and memory for it: `into` or its own. INTERNAL where name or dtype
// are unknown; else the errors of Tensor::Create.
absl::StatusOr<std::string> ToOutputName(const v1::TensorSpec& tensor);
absl::StatusOr<Tensor> ToOutputTensor(const v1::TensorSpec& tensor, std::optional<std::span<std::byte>> into);

Timings ToTimings(const v1::Timings& timings);
std::chrono::nanoseconds ToNanoseconds(const google::protobuf::Duration& duration);
ServerInfo ToServerInfo(const v1::GetServerInfoResponse& response);

}  // namespace flashbob::client

#endif  // FLASHBOB_CLIENT_CPP_WIRE_H_
