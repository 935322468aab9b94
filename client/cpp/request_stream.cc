#include "client/cpp/request_stream.h"

#include "proto/chunk_message.h"

namespace flashbob::client {

using grpc::internal::RpcMethod;

std::unique_ptr<ComputeStream> StartCompute(grpc::ChannelInterface& channel, grpc::ClientContext& context) {
  const RpcMethod method("/flashbob.v1.AttentionService/Compute", RpcMethod::BIDI_STREAMING);
  using Factory = grpc::internal::ClientReaderWriterFactory<grpc::ByteBuffer, v1::ComputeResponse>;
  return std::unique_ptr<ComputeStream>(Factory::Create(&channel, method, &context));
}

std::unique_ptr<PutStream> StartPut(grpc::ChannelInterface& channel, grpc::ClientContext& context,
                                    v1::PutTensorsResponse& response) {
  const RpcMethod method("/flashbob.v1.AttentionService/PutTensors", RpcMethod::CLIENT_STREAMING);
  using Factory = grpc::internal::ClientWriterFactory<grpc::ByteBuffer>;
  return std::unique_ptr<PutStream>(Factory::Create(&channel, method, &context, &response));
}

grpc::ByteBuffer ChunkRequest(size_t tensor, size_t offset, std::span<const std::byte> data) {
  constexpr int kChunk = v1::ComputeRequest::kChunkFieldNumber;
  static_assert(kChunk == v1::PutTensorsRequest::kChunkFieldNumber);
  return ChunkMessage(kChunk, tensor, offset, data);
}

}  // namespace flashbob::client
