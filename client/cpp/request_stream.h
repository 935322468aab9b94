// Streams whose requests are bytes, so that a tensor's are copied once (proto/chunk_message.h). Internal to the
// library.
#ifndef FLASHBOB_CLIENT_CPP_REQUEST_STREAM_H_
#define FLASHBOB_CLIENT_CPP_REQUEST_STREAM_H_

#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/sync_stream.h>

#include <cstddef>
#include <memory>
#include <span>

#include "flashbob/v1/attention_service.pb.h"

namespace flashbob::client {

using ComputeStream = grpc::ClientReaderWriter<grpc::ByteBuffer, v1::ComputeResponse>;
using PutStream = grpc::ClientWriter<grpc::ByteBuffer>;

std::unique_ptr<ComputeStream> StartCompute(grpc::ChannelInterface& channel, grpc::ClientContext& context);
// `response` is there once the stream has finished well.
std::unique_ptr<PutStream> StartPut(grpc::ChannelInterface& channel, grpc::ClientContext& context,
                                    v1::PutTensorsResponse& response);

template <class Message>
grpc::ByteBuffer ToBytes(const Message& message) {
  grpc::ByteBuffer bytes;
  bool owned = false;
  grpc::SerializationTraits<Message>::Serialize(message, &bytes, &owned);
  return bytes;
}

// A ComputeRequest, or PutTensorsRequest, with a chunk.
grpc::ByteBuffer ChunkRequest(size_t tensor, size_t offset, std::span<const std::byte> data);

}  // namespace flashbob::client

#endif  // FLASHBOB_CLIENT_CPP_REQUEST_STREAM_H_
