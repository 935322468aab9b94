// One try of each call that has to do with tensors on the server. Internal to the library.
//
// `context` has deadline and credentials; each blocks until its call has ended. INTERNAL where the server breaks the
// protocol.
#ifndef FLASHBOB_CLIENT_CPP_STORE_ATTEMPTS_H_
#define FLASHBOB_CLIENT_CPP_STORE_ATTEMPTS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "flashbob/attention.h"
#include "flashbob/tensor.h"
#include "flashbob/v1/attention_service.grpc.pb.h"

namespace flashbob::client {

// `spec` is of `tensors`.
absl::StatusOr<std::vector<StoredTensor>> PutOnce(grpc::ChannelInterface& channel, grpc::ClientContext& context,
                                                  const v1::PutTensorsSpec& spec,
                                                  const std::vector<NamedTensor>& tensors, size_t chunk_bytes);
absl::StatusOr<std::vector<Tensor>> GetOnce(v1::AttentionService::Stub& stub, grpc::ClientContext& context,
                                            const std::vector<StoredTensor>& tensors);
absl::StatusOr<int64_t> DeleteOnce(v1::AttentionService::Stub& stub, grpc::ClientContext& context,
                                   const std::vector<StoredTensor>& tensors);

}  // namespace flashbob::client

#endif  // FLASHBOB_CLIENT_CPP_STORE_ATTEMPTS_H_
