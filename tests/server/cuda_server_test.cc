// A server on a real GPU: what it computes, and what is left of it when the GPU fails. Skipped where there is no GPU.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <sstream>

#include "kernels/devices/devices.h"
#include "server/service/health.grpc.pb.h"
#include "spdlog/sinks/ostream_sink.h"
#include "tests/server/testing/compute_client.h"
#include "tests/server/testing/test_server.h"

namespace flashbob::server {
namespace {

using grpc::health::v1::HealthCheckResponse;

class CudaServerTest : public testing::Test {
 protected:
  void SetUp() override {
    const MachineDevices machine = FindDevices();
    if (machine.gpus.empty()) GTEST_SKIP() << "no GPU to test on: " << machine.why_no_gpus;
    device_ = ChooseDevices("auto", machine)->names.front();
    Server::Environment environment;
    for (int i = 0; i < 2; ++i) {
      absl::StatusOr<std::unique_ptr<Engine>> engine = CreateEngine(device_);
      ASSERT_TRUE(engine.ok()) << engine.status();
      (i == 0 ? environment.engines.emplace_back() : other_engine_) = *std::move(engine);
    }
    environment.clock = &clock_;
    environment.log = &log_;
    environment.on_device_lost = [this](const absl::Status&) { ++devices_lost_; };
    ServerOptions options = TestServer::DefaultOptions();
    options.host_memory_bytes = 256 << 20;
    absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(options, std::move(environment));
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    channel_ = ConnectTo(server_->port());
    stub_ = v1::AttentionService::NewStub(channel_);
  }

  HealthCheckResponse::ServingStatus Health() {
    const auto stub = grpc::health::v1::Health::NewStub(channel_);
    grpc::ClientContext context;
    HealthCheckResponse response;
    EXPECT_TRUE(stub->Check(&context, grpc::health::v1::HealthCheckRequest(), &response).ok());
    return response.status();
  }

  // Has the GPU read where there is no memory. From then on all that this process asks of it fails.
  void FaultDevice() {
    std::vector<TensorInfo> inputs;
    TensorPointers nowhere;
    for (TensorName name : {TensorName::kQ, TensorName::kK, TensorName::kV, TensorName::kO, TensorName::kLse}) {
      nowhere.Set(name, reinterpret_cast<void*>(uintptr_t{1} << 20));
      if (inputs.size() < 3) inputs.push_back({name, DType::kFloat32, {1, 1, 64, 64}});
    }
    const absl::StatusOr<Computation> computation = Computation::Create(Operation::kForward, {}, inputs, {});
    ASSERT_TRUE(computation.ok()) << computation.status();
    const absl::StatusOr<std::unique_ptr<const Plan>> plan = other_engine_->MakePlan(*computation);
    ASSERT_TRUE(plan.ok()) << plan.status();
    const absl::StatusOr<std::unique_ptr<Stream>> stream = other_engine_->CreateStream();
    ASSERT_TRUE(stream.ok()) << stream.status();
    ASSERT_TRUE(other_engine_->Launch(**plan, 0, nowhere, nullptr, **stream).ok());
    ASSERT_FALSE((*stream)->Synchronize().ok());
  }

  std::string device_;
  SteadyClock clock_;
  std::ostringstream log_text_;
  EventLog log_{LogLevel::kDebug, LogFormat::kText, std::make_shared<spdlog::sinks::ostream_sink_mt>(log_text_)};
  std::atomic<int> devices_lost_ = 0;
  std::unique_ptr<Engine> other_engine_;  // on the same GPU
  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::AttentionService::Stub> stub_;
};

// FORWARD of `length` queries on one key: o is v, on every row.
v1::ComputeSpec OneKey(int64_t length, int64_t dim) {
  v1::ComputeSpec spec = ForwardSpec(1, length, dim);
  for (int input : {1, 2}) spec.mutable_inputs(input)->mutable_tensor()->set_shape(2, 1);
  return spec;
}

TEST_F(CudaServerTest, ComputesOnTheGpu) {
  const v1::ComputeSpec spec = OneKey(5, 4);
  const float v[] = {1.5f, -2, 0, 3e7f};
  for (int round = 0; round < 3; ++round) {  // new blocks first, cached ones then
    ComputeStream stream(*stub_);
    stream.Send(spec);
    stream.Send(0, 0, std::string(5 * sizeof(v), '\0'));
    stream.Send(1, 0, std::string(sizeof(v), '\0'));
    stream.Send(2, 0, std::string(reinterpret_cast<const char*>(v), sizeof(v)));
    stream.CloseSending();
    const Computed computed = ReceiveAll(stream);
    ASSERT_TRUE(computed.status.ok()) << computed.status.error_message();
    EXPECT_EQ(computed.result->device(), device_);
    ASSERT_EQ(computed.outputs[0].size(), 5 * sizeof(v));
    for (size_t row = 0; row < 5; ++row) {
      EXPECT_EQ(std::memcmp(computed.outputs[0].data() + row * sizeof(v), v, sizeof(v)), 0) << "row " << row;
    }
  }
}

TEST_F(CudaServerTest, SaysHowMuchOfTheGpuItUses) {
  grpc::ClientContext context;
  v1::GetServerInfoResponse info;
  ASSERT_TRUE(stub_->GetServerInfo(&context, v1::GetServerInfoRequest(), &info).ok());
  ASSERT_EQ(info.devices_size(), 1);
  EXPECT_EQ(info.devices(0).name(), device_);
  EXPECT_FALSE(info.devices(0).model().empty());
  EXPECT_GT(info.devices(0).memory().limit_bytes(), int64_t{1} << 30);
  EXPECT_EQ(info.devices(0).memory().reserved_bytes(), 0);
  EXPECT_GT(info.capabilities_size(), 0);
}

// Last: no test of this process can use the GPU after it.
TEST_F(CudaServerTest, LostGpuIsSaidToEveryCallAndToHealthAndTheServerStillStops) {
  ASSERT_TRUE(Compute(*stub_, ForwardSpec(2, 64, 64)).status.ok());
  EXPECT_EQ(Health(), HealthCheckResponse::SERVING);
  FaultDevice();
  for (int round = 0; round < 2; ++round) {  // the one that finds out, and one that comes later
    const Computed computed = Compute(*stub_, ForwardSpec(2, 64, 64));
    const WireError error = Decode(computed.status);
    EXPECT_EQ(error.code, grpc::StatusCode::UNAVAILABLE) << error.text;
    EXPECT_EQ(error.reason, "DEVICE_LOST") << error.text;
    EXPECT_NE(error.text.find(device_), std::string::npos) << error.text;
  }
  EXPECT_EQ(Health(), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(devices_lost_, 1);
  server_->Drain(std::chrono::seconds(20));
  EXPECT_EQ(server_->calls().size(), 0);
  EXPECT_EQ(server_->HostMemory().reserved_bytes, 0);
  server_.reset();
}

}  // namespace
}  // namespace flashbob::server
