// A message that is a chunk of a tensor, as bytes: the tensor's are copied once, from where they lie into what gRPC
// sends. A generated message would copy them twice.
#ifndef FLASHBOB_PROTO_CHUNK_MESSAGE_H_
#define FLASHBOB_PROTO_CHUNK_MESSAGE_H_

#include <grpcpp/support/byte_buffer.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace flashbob {

// The bytes of a message whose only field, `field`, is a TensorChunk: `data`, which begins at `byte_offset` of tensor
// `tensor_index`. Neither reads nor keeps `data` after it returns.
grpc::ByteBuffer ChunkMessage(int field, size_t tensor_index, size_t byte_offset, std::span<const std::byte> data);

}  // namespace flashbob

#endif  // FLASHBOB_PROTO_CHUNK_MESSAGE_H_
