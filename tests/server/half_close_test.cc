// Clients that have sent everything, or nearly, and say that they have, while nobody reads it and what gRPC may hold
// fills up.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/server/testing/test_server.h"

namespace flashbob::server {
namespace {

using Clock = std::chrono::steady_clock;

// gRPC (1.51) offers a stream 4 MiB as long as it holds little, and 128 KiB once a tenth of its quota is taken. A
// stream with more unread than the new size may send nothing then, and gRPC takes an end without bytes for more than
// nothing: it resets the stream. So an end has to come with the last bytes, which wait.
TEST(HalfCloseTest, EndThatComesWithTheLastBytesOutlivesASmallerWindow) {
  TestServer server;
  const auto holder_stub = server.Connect();
  ComputeStream holder(*holder_stub);
  ASSERT_TRUE(holder.Send(ForwardSpec(1, 13 << 10, 64)));  // what is left of 16 MiB takes no other
  ASSERT_TRUE(holder.Receive().has_value());

  // Connections get their first windows while nothing is held. Then each stream sends all of 0.75 MiB but four bytes.
  const v1::ComputeSpec spec = ForwardSpec(1, 1024, 64);
  const std::string tensor(static_cast<size_t>(BytesOf(spec.inputs(0))), '\0');
  const auto last = static_cast<int64_t>(tensor.size()) - 4;
  std::vector<std::unique_ptr<v1::AttentionService::Stub>> stubs;
  for (int i = 0; i < 5; ++i) stubs.push_back(server.Connect());
  std::vector<std::unique_ptr<ComputeStream>> waiting;
  for (const auto& stub : stubs) {
    waiting.push_back(std::make_unique<ComputeStream>(*stub));
    ASSERT_TRUE(waiting.back()->Send(spec));
    for (uint32_t t = 0; t < 2; ++t) ASSERT_TRUE(waiting.back()->Send(t, 0, tensor));
    ASSERT_TRUE(waiting.back()->Send(2, 0, tensor.substr(0, static_cast<size_t>(last))));
  }
  // gRPC looks at what it holds while a connection has traffic, every 100 ms.
  for (const auto until = Clock::now() + std::chrono::milliseconds(1500); Clock::now() < until;) {
    for (const auto& stub : stubs) {
      grpc::ClientContext context;
      v1::GetServerInfoResponse info;
      ASSERT_TRUE(stub->GetServerInfo(&context, {}, &info).ok());
    }
  }
  std::vector<std::thread> senders;
  for (const auto& stream : waiting) {
    senders.emplace_back([&stream, last] { stream->SendLast(2, last, std::string(4, '\0')); });
  }
  // Answered after what is above was sent, where it was, on each connection.
  for (const auto& stub : stubs) {
    grpc::ClientContext context;
    v1::GetServerInfoResponse info;
    EXPECT_TRUE(stub->GetServerInfo(&context, {}, &info).ok());
  }
  holder.Cancel();
  for (std::thread& sender : senders) sender.join();
  for (const auto& stream : waiting) {
    const grpc::Status status = stream->Finish();
    EXPECT_TRUE(status.ok()) << status.error_code() << ": " << status.error_message();
  }
  EXPECT_TRUE(server.CleanAndServing());
}

}  // namespace
}  // namespace flashbob::server
