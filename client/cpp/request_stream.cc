#include "client/cpp/request_stream.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/wire_format_lite.h>

#include <string>

namespace flashbob::client {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedOutputStream;
using google::protobuf::io::StringOutputStream;
using grpc::internal::RpcMethod;

// Appends the head of a field of `size` bytes.
void AppendHead(int field, size_t size, std::string& to) {
  StringOutputStream output(&to);
  CodedOutputStream stream(&output);
  stream.WriteTag(WireFormatLite::MakeTag(field, WireFormatLite::WIRETYPE_LENGTH_DELIMITED));
  stream.WriteVarint64(size);
}

}  // namespace

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
  v1::TensorChunk chunk;
  chunk.set_tensor_index(static_cast<uint32_t>(tensor));
  chunk.set_byte_offset(static_cast<int64_t>(offset));
  std::string before = chunk.SerializeAsString();
  AppendHead(v1::TensorChunk::kDataFieldNumber, data.size(), before);
  std::string head;
  AppendHead(kChunk, before.size() + data.size(), head);
  const grpc::Slice slices[] = {grpc::Slice(head + before), grpc::Slice(data.data(), data.size())};
  return grpc::ByteBuffer(slices, 2);
}

}  // namespace flashbob::client
