// Messages and metadata that are wrong below the contract: bytes that are no message, more bytes than are allowed.
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "tests/server/testing/test_server.h"

namespace flashbob::server {
namespace {

constexpr char kPrefix[] = "/flashbob.v1.AttentionService/";

grpc::ByteBuffer Bytes(const std::string& text) {
  const grpc::Slice slice(text);
  return grpc::ByteBuffer(&slice, 1);
}

// One message to a method, as it is; what the call ends with.
WireError Send(const TestServer& server, const std::string& method, const grpc::ByteBuffer& message,
               const std::vector<std::pair<std::string, std::string>>& metadata = {}) {
  grpc::GenericStub stub(ConnectTo(server.port()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  for (const auto& [key, value] : metadata) context.AddMetadata(key, value);
  grpc::CompletionQueue queue;
  const auto stream = stub.PrepareCall(&context, kPrefix + method, &queue);
  // Whether the operation that was started went well.
  const auto done = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  stream->StartCall(nullptr);
  if (done()) {
    stream->WriteLast(message, grpc::WriteOptions(), nullptr);
    done();
  }
  grpc::Status status;
  stream->Finish(&status, nullptr);
  done();
  queue.Shutdown();
  return Decode(status);
}

class BadMessageTest : public testing::TestWithParam<const char*> {};

TEST_P(BadMessageTest, BytesThatAreNoMessageAreToldAsSuch) {
  TestServer server;
  // A field of 100 bytes of which 3 come; a group that is not closed; a varint without an end.
  for (const std::string& bytes : {std::string("\x0a\x64"
                                               "abc"),
                                   std::string("\x0b"), std::string(11, '\xff')}) {
    const WireError error = Send(server, GetParam(), Bytes(bytes));
    EXPECT_EQ(error.code, grpc::StatusCode::INVALID_ARGUMENT) << error.text;
    EXPECT_EQ(error.reason, "BAD_SPEC") << error.text;
    EXPECT_NE(error.text.find(std::to_string(bytes.size()) + " bytes that is no flashbob.v1." + GetParam()),
              std::string::npos)
        << error.text;
    EXPECT_FALSE(error.retry_seconds.has_value());
  }
  EXPECT_TRUE(server.CleanAndServing());
}

TEST_P(BadMessageTest, MessageOverTheLimitIsRefusedWithTheLimit) {
  TestServer server;
  const int64_t limit = MaxMessageBytes(TestServer::DefaultOptions());
  const WireError error = Send(server, GetParam(), Bytes(std::string(static_cast<size_t>(limit) + 1, 'x')));
  EXPECT_EQ(error.code, grpc::StatusCode::RESOURCE_EXHAUSTED) << error.text;
  EXPECT_NE(error.text.find(std::to_string(limit)), std::string::npos) << error.text;
  EXPECT_FALSE(error.retry_seconds.has_value()) << "the next try would be as long";
  EXPECT_TRUE(server.CleanAndServing());
}

TEST_P(BadMessageTest, MessageThatIsFarOverTheLimitIsCutBeforeAllOfItHasCome) {
  TestServer server;
  const int64_t bytes = 4 * WireMemoryBytes(TestServer::DefaultOptions());
  const WireError error = Send(server, GetParam(), Bytes(std::string(static_cast<size_t>(bytes), 'x')));
  EXPECT_EQ(error.code, grpc::StatusCode::RESOURCE_EXHAUSTED) << error.text;
  EXPECT_EQ(error.text.find(std::to_string(bytes)), std::string::npos) << "it took all of it: " << error.text;
  EXPECT_TRUE(server.CleanAndServing());
}

TEST_P(BadMessageTest, MetadataOverTheLimitIsRefused) {
  TestServer server;
  const std::string large(static_cast<size_t>(kMaxMetadataBytes) + 1, 'x');
  const WireError error = Send(server, GetParam(), Bytes(""), {{"x-large", large}});
  EXPECT_EQ(error.code, grpc::StatusCode::RESOURCE_EXHAUSTED) << error.text;
  EXPECT_NE(error.text.find("metadata"), std::string::npos) << error.text;
  EXPECT_TRUE(server.CleanAndServing());
}

INSTANTIATE_TEST_SUITE_P(Methods, BadMessageTest,
                         testing::Values("Compute", "PutTensors", "GetTensors", "DeleteTensors", "GetServerInfo"));

}  // namespace
}  // namespace flashbob::server
