// Clients that are lost: killed, or silent behind a network that fails. What they held is freed.
#include <gtest/gtest.h>

#include "tests/server/testing/tcp_relay.h"
#include "tests/server/testing/test_server.h"

namespace flashbob::server {
namespace {

// A call whose upload is under way, through `relay`.
std::unique_ptr<ComputeStream> StartUpload(v1::AttentionService::Stub& stub) {
  auto stream = std::make_unique<ComputeStream>(stub);
  stream->Send(ForwardSpec(2, 1000, 64));
  EXPECT_TRUE(stream->Receive().has_value());
  stream->Send(0, 0, std::string(100, 'a'));
  return stream;
}

TEST(LostClientTest, ClosedConnectionFreesWhatItsCallsHeld) {
  TestServer server;
  TcpRelay relay(server.server().port());
  const auto stub = v1::AttentionService::NewStub(ConnectTo(relay.port()));
  const auto uploading = StartUpload(*stub);
  EXPECT_GT(server.server().HostMemory().reserved_bytes, 0);
  relay.Cut();
  EXPECT_TRUE(server.CleanAndServing());
  EXPECT_NE(server.log().find("code=CANCELLED"), std::string::npos) << server.log();
}

TEST(LostClientTest, SilentPeerIsFoundByKeepalive) {
  ServerOptions options = TestServer::DefaultOptions();
  options.keepalive_seconds = 1;
  options.keepalive_timeout_seconds = 1;
  TestServer server({}, options);  // an idle upload is cut only after 30 s
  TcpRelay relay(server.server().port());
  const auto stub = v1::AttentionService::NewStub(ConnectTo(relay.port()));
  const auto uploading = StartUpload(*stub);
  relay.Silence();
  EXPECT_TRUE(server.CleanAndServing());
  EXPECT_NE(server.log().find("code=CANCELLED"), std::string::npos) << server.log();
}

// In the states in which the server expects nothing of its client, or only that it takes its outputs.
TEST(LostClientTest, SilentPeerIsFoundWhileItsRequestRunsOrIsSent) {
  for (const bool runs : {true, false}) {
    ServerOptions options = TestServer::DefaultOptions();
    options.keepalive_seconds = 1;
    options.keepalive_timeout_seconds = 1;
    options.host_memory_bytes = 64 << 20;
    TestServer server({}, options);
    TcpRelay relay(server.server().port());
    const auto stub = v1::AttentionService::NewStub(ConnectTo(relay.port(), /*small_window=*/true));
    const v1::ComputeSpec spec = ForwardSpec(1, runs ? 16 : 30000, 64);
    if (runs) server.engine().Hold();
    ComputeStream stream(*stub);
    stream.Send(spec);
    ASSERT_TRUE(stream.SendInputs(spec));
    stream.CloseSending();
    if (runs) {
      server.engine().WaitForLaunches(1);
    } else {
      while (!stream.Receive()->has_result()) {
      }
    }
    relay.Silence();
    EXPECT_TRUE(server.server().calls().WaitUntilEmpty(std::chrono::seconds(10)));
    EXPECT_NE(server.log().find("code=CANCELLED"), std::string::npos) << server.log();
    server.engine().LetGo();
    EXPECT_TRUE(server.CleanAndServing());
  }
}

TEST(LostClientTest, SilentPeerIsFoundWithinThirtySecondsByDefault) {
  const ServerOptions options;
  EXPECT_LE(options.keepalive_seconds + options.keepalive_timeout_seconds, 30);
}

}  // namespace
}  // namespace flashbob::server
