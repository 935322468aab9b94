// Messages between their bytes and their types. The service takes bytes from gRPC and reads them here: gRPC tells a
// stream of a message that cannot be read as if it had ended.
#ifndef FLASHBOB_SERVER_SERVICE_MESSAGES_H_
#define FLASHBOB_SERVER_SERVICE_MESSAGES_H_

#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/support/byte_buffer.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "proto/chunk_message.h"
#include "server/base/errors.h"
#include "server/service/download.h"

namespace flashbob::server {

// Takes the bytes out of `bytes`. INVALID_ARGUMENT, BAD_SPEC, where they are no such message.
template <class Message>
absl::Status ReadMessage(grpc::ByteBuffer& bytes, Message& message) {
  const size_t size = bytes.Length();
  const grpc::Status read = grpc::GenericDeserialize<grpc::ProtoBufferReader, Message>(&bytes, &message);
  bytes.Clear();
  if (read.ok()) return absl::OkStatus();
  return Error(Reason::kBadSpec,
               absl::StrCat("a message of ", size, " bytes that is no ", Message::descriptor()->full_name()));
}

template <class Message>
void WriteMessage(const Message& message, grpc::ByteBuffer& bytes) {
  bytes.Clear();
  bool owned = false;
  grpc::GenericSerialize<grpc::ProtoBufferWriter, Message>(message, &bytes, &owned);
}

// The next chunk of a download as a `Message`, whose field `chunk` it is.
template <class Message>
grpc::ByteBuffer ChunkOf(const Download::Chunk& chunk) {
  return ChunkMessage(Message::kChunkFieldNumber, chunk.tensor_index, static_cast<size_t>(chunk.byte_offset),
                      chunk.data);
}

}  // namespace flashbob::server

#endif  // FLASHBOB_SERVER_SERVICE_MESSAGES_H_
