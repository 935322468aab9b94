#include "proto/chunk_message.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/wire_format_lite.h>

#include <string>

#include "flashbob/v1/attention_service.pb.h"

namespace flashbob {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedOutputStream;
using google::protobuf::io::StringOutputStream;

// Appends the head of a field of `size` bytes.
void AppendHead(int field, size_t size, std::string& to) {
  StringOutputStream output(&to);
  CodedOutputStream stream(&output);
  stream.WriteTag(WireFormatLite::MakeTag(field, WireFormatLite::WIRETYPE_LENGTH_DELIMITED));
  stream.WriteVarint64(size);
}

}  // namespace

grpc::ByteBuffer ChunkMessage(int field, size_t tensor_index, size_t byte_offset, std::span<const std::byte> data) {
  v1::TensorChunk chunk;
  chunk.set_tensor_index(static_cast<uint32_t>(tensor_index));
  chunk.set_byte_offset(static_cast<int64_t>(byte_offset));
  std::string before = chunk.SerializeAsString();
  AppendHead(v1::TensorChunk::kDataFieldNumber, data.size(), before);
  std::string head;
  AppendHead(field, before.size() + data.size(), head);
  const grpc::Slice slices[] = {grpc::Slice(head + before), grpc::Slice(data.data(), data.size())};
  return grpc::ByteBuffer(slices, 2);
}

}  // namespace flashbob
