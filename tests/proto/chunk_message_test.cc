// Bytes made by hand are those of the contract's messages.
#include "proto/chunk_message.h"

#include <grpcpp/impl/codegen/proto_utils.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "flashbob/v1/attention_service.pb.h"

namespace flashbob {
namespace {

template <class Message>
Message Parsed(grpc::ByteBuffer bytes) {
  Message message;
  EXPECT_TRUE(grpc::SerializationTraits<Message>::Deserialize(&bytes, &message).ok());
  return message;
}

template <class Message>
void ExpectChunk(size_t tensor, size_t offset, const std::vector<std::byte>& data) {
  const auto message = Parsed<Message>(ChunkMessage(Message::kChunkFieldNumber, tensor, offset, data));
  ASSERT_TRUE(message.has_chunk());
  EXPECT_EQ(message.chunk().tensor_index(), tensor);
  EXPECT_EQ(message.chunk().byte_offset(), static_cast<int64_t>(offset));
  EXPECT_TRUE(message.chunk().data() == std::string(reinterpret_cast<const char*>(data.data()), data.size()))
      << data.size();
}

TEST(ChunkMessageTest, ParsesAsTheContractSays) {
  for (const size_t tensor : {0, 1, 6, 200}) {
    for (const size_t offset : {size_t{0}, size_t{127}, size_t{1} << 20, size_t{1} << 40}) {
      for (const size_t size : {0, 1, 127, 128, 20000, 1 << 20}) {
        std::vector<std::byte> data(size);
        for (size_t i = 0; i < size; ++i) data[i] = static_cast<std::byte>(i * 7 + tensor);
        ExpectChunk<v1::ComputeRequest>(tensor, offset, data);
        ExpectChunk<v1::ComputeResponse>(tensor, offset, data);
        ExpectChunk<v1::PutTensorsRequest>(tensor, offset, data);
        ExpectChunk<v1::GetTensorsResponse>(tensor, offset, data);
      }
    }
  }
}

}  // namespace
}  // namespace flashbob
