// Stopping: health first, then a grace period, then a clean status for what is left.
#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "server/service/health.grpc.pb.h"
#include "tests/server/testing/test_server.h"

namespace flashbob::server {
namespace {

using grpc::health::v1::HealthCheckResponse;

class DrainTest : public testing::Test {
 protected:
  // "" asks for the server as a whole.
  HealthCheckResponse::ServingStatus Health(const std::string& service) {
    const auto stub = grpc::health::v1::Health::NewStub(channel_);
    grpc::ClientContext context;
    grpc::health::v1::HealthCheckRequest request;
    request.set_service(service);
    HealthCheckResponse response;
    const grpc::Status status = stub->Check(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.status();
  }

  // A request that runs, held by the engine.
  std::unique_ptr<ComputeStream> StartRunning() {
    server_.engine().Hold();
    auto stream = std::make_unique<ComputeStream>(*stub_);
    const v1::ComputeSpec spec = ForwardSpec(1, 16, 8);
    stream->Send(spec);
    stream->SendInputs(spec);
    stream->CloseSending();
    server_.engine().WaitForLaunches(1);
    return stream;
  }

  // Waits until draining has begun: the server has turned its health.
  void WaitUntilDraining() {
    while (Health("") != HealthCheckResponse::NOT_SERVING) std::this_thread::yield();
  }

  TestServer server_;
  const std::shared_ptr<grpc::Channel> channel_ = ConnectTo(server_.server().port());
  const std::unique_ptr<v1::AttentionService::Stub> stub_ = server_.Connect();
};

TEST_F(DrainTest, ServingServerSaysSo) {
  EXPECT_EQ(Health(""), HealthCheckResponse::SERVING);
  EXPECT_EQ(Health("flashbob.v1.AttentionService"), HealthCheckResponse::SERVING);
}

TEST_F(DrainTest, WhatRunsIsFinishedAndWhatComesIsRefused) {
  const auto running = StartRunning();
  std::future<void> drained =
      std::async(std::launch::async, [this] { server_.server().Drain(std::chrono::seconds(60)); });
  WaitUntilDraining();
  EXPECT_EQ(Health("flashbob.v1.AttentionService"), HealthCheckResponse::NOT_SERVING);

  ComputeStream late(*stub_);
  late.Send(ForwardSpec(1, 16, 8));
  const WireError error = Decode(late.Finish());
  EXPECT_EQ(error.code, grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(error.reason, "DRAINING");
  EXPECT_TRUE(error.retry_seconds.has_value());

  server_.engine().LetGo();
  const Computed computed = ReceiveAll(*running);
  EXPECT_TRUE(computed.status.ok()) << computed.status.error_message();
  EXPECT_EQ(computed.outputs.size(), 2u);
  drained.get();
}

TEST_F(DrainTest, WhatOutlivesTheGracePeriodEndsWithACleanStatus) {
  const auto running = StartRunning();
  ComputeStream uploading(*stub_);
  uploading.Send(ForwardSpec(1, 16, 8));
  ASSERT_TRUE(uploading.Receive().has_value());
  std::future<void> drained =
      std::async(std::launch::async, [this] { server_.server().Drain(std::chrono::milliseconds(500)); });
  for (ComputeStream* stream : {running.get(), &uploading}) {
    const WireError error = Decode(stream->Finish());
    EXPECT_EQ(error.code, grpc::StatusCode::UNAVAILABLE) << error.text;
    EXPECT_EQ(error.reason, "DRAINING");
    EXPECT_TRUE(error.retry_seconds.has_value());
  }
  drained.get();
  EXPECT_EQ(server_.server().calls().size(), 0);
  server_.engine().LetGo();
}

TEST_F(DrainTest, IdleServerDrainsAtOnce) {
  const auto began = std::chrono::steady_clock::now();
  server_.server().Drain(std::chrono::seconds(60));
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(30));
}

}  // namespace
}  // namespace flashbob::server
