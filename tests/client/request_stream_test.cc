// Bytes made by hand are those of the contract's messages.
#include "client/cpp/request_stream.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace flashbob::client {
namespace {

template <class Message>
Message Parsed(grpc::ByteBuffer bytes) {
  Message message;
  EXPECT_TRUE(grpc::SerializationTraits<Message>::Deserialize(&bytes, &message).ok());
  return message;
}

TEST(RequestStreamTest, ChunkParsesAsTheContractSays) {
  for (const size_t tensor : {0, 1, 6, 200}) {
    for (const size_t offset : {size_t{0}, size_t{127}, size_t{1} << 20, size_t{1} << 40}) {
      for (const size_t size : {0, 1, 127, 128, 20000, 1 << 20}) {
        std::vector<std::byte> data(size);
        for (size_t i = 0; i < size; ++i) data[i] = static_cast<std::byte>(i * 7 + tensor);
        const grpc::ByteBuffer bytes = ChunkRequest(tensor, offset, data);
        for (const auto& chunk :
             {Parsed<v1::ComputeRequest>(bytes).chunk(), Parsed<v1::PutTensorsRequest>(bytes).chunk()}) {
          EXPECT_EQ(chunk.tensor_index(), tensor);
          EXPECT_EQ(chunk.byte_offset(), static_cast<int64_t>(offset));
          EXPECT_TRUE(chunk.data() == std::string(reinterpret_cast<const char*>(data.data()), size)) << size;
        }
      }
    }
  }
}

}  // namespace
}  // namespace flashbob::client
