#include "tests/benchmark/raw_upload.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/sync_stream.h>

#include <algorithm>

#include "flashbob/v1/attention_service.pb.h"

namespace flashbob {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedOutputStream;
using google::protobuf::io::StringOutputStream;

uint32_t Tag(int field, WireFormatLite::WireType type) { return WireFormatLite::MakeTag(field, type); }

// What stands before the data of a PutTensorsRequest with a chunk.
std::string HeadOf(size_t offset, size_t size) {
  std::string inner;
  {
    StringOutputStream to(&inner);
    CodedOutputStream stream(&to);
    stream.WriteTag(Tag(v1::TensorChunk::kByteOffsetFieldNumber, WireFormatLite::WIRETYPE_VARINT));
    stream.WriteVarint64(offset);
    stream.WriteTag(Tag(v1::TensorChunk::kDataFieldNumber, WireFormatLite::WIRETYPE_LENGTH_DELIMITED));
    stream.WriteVarint32(static_cast<uint32_t>(size));
  }
  std::string head;
  {
    StringOutputStream to(&head);
    CodedOutputStream stream(&to);
    stream.WriteTag(Tag(v1::PutTensorsRequest::kChunkFieldNumber, WireFormatLite::WIRETYPE_LENGTH_DELIMITED));
    stream.WriteVarint32(static_cast<uint32_t>(inner.size() + size));
    stream.WriteString(inner);
  }
  return head;
}

}  // namespace

bool RawUpload(const std::shared_ptr<grpc::Channel>& channel, const std::string& token, bool copied,
               std::span<const std::byte> bytes) {
  using Method = grpc::internal::RpcMethod;
  const Method method("/flashbob.v1.AttentionService/PutTensors", Method::CLIENT_STREAMING, channel);
  grpc::ClientContext context;
  context.AddMetadata("authorization", "Bearer " + token);
  grpc::ByteBuffer response;
  const std::unique_ptr<grpc::ClientWriter<grpc::ByteBuffer>> writer(
      grpc::internal::ClientWriterFactory<grpc::ByteBuffer>::Create(channel.get(), method, &context, &response));
  v1::PutTensorsRequest message;
  message.mutable_spec()->add_tensors();
  const grpc::Slice spec(message.SerializeAsString());
  bool sent = writer->Write(grpc::ByteBuffer(&spec, 1));
  constexpr size_t kChunk = size_t{1} << 20;
  for (size_t offset = 0; sent && offset < bytes.size(); offset += kChunk) {
    const std::span<const std::byte> chunk = bytes.subspan(offset, std::min(kChunk, bytes.size() - offset));
    const grpc::Slice slices[] = {grpc::Slice(HeadOf(offset, chunk.size())),
                                  copied ? grpc::Slice(chunk.data(), chunk.size())
                                         : grpc::Slice(chunk.data(), chunk.size(), grpc::Slice::STATIC_SLICE)};
    sent = writer->Write(grpc::ByteBuffer(slices, 2));
  }
  writer->WritesDone();
  return writer->Finish().ok();
}

}  // namespace flashbob
