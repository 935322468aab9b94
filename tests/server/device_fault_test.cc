// A device that fails, runs out of memory or hangs, at each step of a request's life: what the client sees and what is
// left. The engine computes on the CPU behind memory of its own (FaultyEngine), so that every step of a GPU takes
// place.
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "kernels/cpu/cpu_engine.h"
#include "server/service/health.grpc.pb.h"
#include "server/service/spec.h"
#include "tests/server/testing/faulty_engine.h"
#include "tests/server/testing/test_server.h"

namespace flashbob::server {
namespace {

using grpc::health::v1::HealthCheckResponse;
using Step = FaultyEngine::Step;

// Copied by the thread that computes, in many slices.
v1::ComputeSpec Small() { return ForwardSpec(2, 200, 16); }

// Copied by threads of their own: q and o of 4 MiB, on one key.
v1::ComputeSpec Large() {
  v1::ComputeSpec spec = ForwardSpec(1, 32768, 32);
  for (int input : {1, 2}) spec.mutable_inputs(input)->mutable_tensor()->set_shape(2, 1);
  return spec;
}

// What the engine gives for the inputs that ComputeStream::SendInputs sends, without a server.
std::vector<std::string> Expected(const v1::ComputeSpec& spec) {
  const ParsedSpec parsed = *ParseSpec(spec);
  TensorPointers tensors;
  std::vector<std::string> inputs(parsed.inputs.size());
  for (size_t t = 0; t < inputs.size(); ++t) {
    inputs[t].resize(static_cast<size_t>(BytesOf(spec.inputs(static_cast<int>(t)))));
    for (size_t i = 0; i < inputs[t].size(); ++i) {
      inputs[t][i] = ComputeStream::PatternByte(t, static_cast<int64_t>(i));
    }
    tensors.Set(parsed.inputs[t], inputs[t].data());
  }
  std::vector<std::string> outputs(parsed.outputs.size());
  for (size_t t = 0; t < outputs.size(); ++t) {
    outputs[t].resize(static_cast<size_t>(parsed.computation.problem().NumBytes(parsed.outputs[t])));
    tensors.Set(parsed.outputs[t], outputs[t].data());
  }
  EXPECT_TRUE(RunToCompletion(*cpu::CreateCpuEngine({}), parsed.computation, tensors).ok());
  return outputs;
}

// In one slice, short enough to be computed by the thread that takes its last input byte.
v1::ComputeSpec Tiny() { return ForwardSpec(1, 16, 8); }

enum class Size : uint8_t { kTiny, kSmall, kLarge };
using enum Size;

// Where a fault shows.
struct Place {
  const char* name;
  Step step;
  int64_t after;  // calls of the step that go well
  Size size;
  v1::ComputeSpec spec() const { return size == kTiny ? Tiny() : size == kSmall ? Small() : Large(); }
};
void PrintTo(const Place& place, std::ostream* out) { *out << place.name; }

constexpr Place kPlaces[] = {
    {"HostMemory", Step::kAllocateHost, 0, kSmall},
    {"HostMemoryOfALargeRequest", Step::kAllocateHost, 2, kLarge},
    {"DeviceMemory", Step::kAllocate, 0, kSmall},
    {"DeviceMemoryOfALargeRequest", Step::kAllocate, 0, kLarge},
    {"CopyingIn", Step::kCopyToDevice, 1, kSmall},
    {"CopyingALargeRequestIn", Step::kCopyToDevice, 0, kLarge},
    {"FirstSlice", Step::kLaunch, 0, kSmall},
    {"LaterSlice", Step::kLaunch, 2, kSmall},
    {"SliceOfALargeRequest", Step::kLaunch, 0, kLarge},
    {"WaitingForASlice", Step::kSynchronize, 1, kSmall},
    {"WaitingForACopyIn", Step::kSynchronize, 0, kLarge},
    {"CopyingOut", Step::kCopyToHost, 1, kSmall},
    {"CopyingALargeResultOut", Step::kCopyToHost, 0, kLarge},
};
// Of a request that the thread computes that took its last byte.
constexpr Place kTinyPlaces[] = {
    {"DeviceMemoryOfATinyRequest", Step::kAllocate, 0, kTiny}, {"CopyingATinyRequestIn", Step::kCopyToDevice, 0, kTiny},
    {"SliceOfATinyRequest", Step::kLaunch, 0, kTiny},          {"CopyingATinyResultOut", Step::kCopyToHost, 0, kTiny},
    {"WaitingForATinyRequest", Step::kSynchronize, 0, kTiny},
};

std::string NameOf(const testing::TestParamInfo<Place>& info) { return info.param.name; }

class DeviceFaultTest : public testing::TestWithParam<Place> {
 protected:
  DeviceFaultTest() {
    auto engine = std::make_unique<FaultyEngine>(cpu::CreateCpuEngine({.threads = 1, .slice_flops = 1e6}));
    engine_ = engine.get();
    ServerOptions options = TestServer::DefaultOptions();
    options.host_memory_bytes = 64 << 20;
    server_ = TestServer::On(std::move(engine), options);
    stub_ = server_->Connect();
  }
  ~DeviceFaultTest() override { engine_->LetGo(); }

  HealthCheckResponse::ServingStatus Health() {
    const auto stub = grpc::health::v1::Health::NewStub(ConnectTo(server_->port()));
    grpc::ClientContext context;
    HealthCheckResponse response;
    EXPECT_TRUE(stub->Check(&context, grpc::health::v1::HealthCheckRequest(), &response).ok());
    return response.status();
  }

  // Counters at their start: no call, no request, no reservation, no block of the device's.
  void ExpectNothingLeft() {
    ASSERT_TRUE(server_->server().calls().WaitUntilEmpty(std::chrono::seconds(10)));
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (server_->server().HostMemory().reserved_bytes != 0 && std::chrono::steady_clock::now() < until) {
      std::this_thread::yield();
    }
    EXPECT_EQ(server_->server().HostMemory().reserved_bytes, 0);
    EXPECT_EQ(server_->server().scheduler().Devices()[0].memory.reserved_bytes, 0);
    EXPECT_EQ(engine_->live_device_bytes(), 0);
    for (int64_t count : server_->server().scheduler().CountByState()) EXPECT_EQ(count, 0);
  }

  // One that has all it needs and waits for the device, or, by `sent` = false, has yet to send its inputs.
  std::unique_ptr<ComputeStream> Start(const v1::ComputeSpec& spec, bool sent) {
    auto stream = std::make_unique<ComputeStream>(*stub_);
    EXPECT_TRUE(stream->Send(spec));
    if (sent) {
      EXPECT_TRUE(stream->SendInputs(spec));
      stream->CloseSending();
    }
    return stream;
  }

  FaultyEngine* engine_ = nullptr;
  std::unique_ptr<TestServer> server_;
  std::unique_ptr<v1::AttentionService::Stub> stub_;
};

class LostDeviceTest : public DeviceFaultTest {};

TEST_P(LostDeviceTest, IsToldToEveryCallByNameAndNothingIsLeft) {
  const Place& place = GetParam();
  const auto expect_lost = [&](const grpc::Status& status) {
    const WireError error = Decode(status);
    EXPECT_EQ(error.code, grpc::StatusCode::UNAVAILABLE) << error.text;
    EXPECT_EQ(error.reason, "DEVICE_LOST") << error.text;
    EXPECT_TRUE(error.retry_seconds.has_value());
    EXPECT_NE(error.text.find("device cpu failed: an illegal memory access"), std::string::npos) << error.text;
  };
  // One whose inputs are still to come when the device is lost.
  const auto uploading = Start(Small(), false);
  ASSERT_TRUE(uploading->Receive().has_value());
  engine_->Lose(place.step, absl::UnavailableError("an illegal memory access"), place.after);
  expect_lost(Compute(*stub_, place.spec()).status);
  EXPECT_EQ(Health(), HealthCheckResponse::NOT_SERVING);
  expect_lost(Compute(*stub_, Small()).status);
  uploading->SendInputs(Small());
  uploading->CloseSending();
  expect_lost(uploading->Finish());
  grpc::ClientContext context;
  v1::GetServerInfoResponse info;
  EXPECT_TRUE(stub_->GetServerInfo(&context, {}, &info).ok()) << "the process lives and answers";
  ExpectNothingLeft();
  server_->server().Drain(std::chrono::seconds(20));
}

INSTANTIATE_TEST_SUITE_P(Places, LostDeviceTest, testing::ValuesIn(kPlaces), NameOf);
INSTANTIATE_TEST_SUITE_P(TinyPlaces, LostDeviceTest, testing::ValuesIn(kTinyPlaces), NameOf);

class HungDeviceTest : public DeviceFaultTest {};

// Its memory is free once the device has come back; nothing may be freed that it still works on.
TEST_P(HungDeviceTest, HoldsUpNoOtherCallNorAnyCancellationOrDeadline) {
  const Place& place = GetParam();
  engine_->Hold(place.step, place.after);
  const auto held = Start(place.spec(), place.step != Step::kAllocateHost);
  engine_->WaitUntilHeld();
  EXPECT_EQ(Health(), HealthCheckResponse::SERVING);
  grpc::ClientContext context;
  v1::GetServerInfoResponse info;
  EXPECT_TRUE(stub_->GetServerInfo(&context, {}, &info).ok());

  ComputeStream behind(*stub_, std::chrono::milliseconds(200));
  behind.Send(Small());
  behind.SendInputs(Small());
  EXPECT_EQ(behind.Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  held->Cancel();
  EXPECT_EQ(held->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(server_->server().calls().WaitUntilEmpty(std::chrono::seconds(10))) << "calls end before the device";

  engine_->LetGo();
  EXPECT_TRUE(server_->CleanAndServing());
  EXPECT_TRUE(Compute(*stub_, place.spec()).outputs == Expected(place.spec()));
  ExpectNothingLeft();
}

INSTANTIATE_TEST_SUITE_P(Places, HungDeviceTest, testing::ValuesIn(kPlaces), NameOf);

TEST_P(HungDeviceTest, DoesNotHoldUpTheEndOfAnyCallWhenTheServerDrains) {
  const Place& place = GetParam();
  engine_->Hold(place.step, place.after);
  const auto held = Start(place.spec(), place.step != Step::kAllocateHost);
  engine_->WaitUntilHeld();
  const auto began = std::chrono::steady_clock::now();
  server_->server().Drain(std::chrono::milliseconds(400));
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(5));
  const WireError error = Decode(held->Finish());
  EXPECT_EQ(error.code, grpc::StatusCode::UNAVAILABLE) << error.text;
  EXPECT_EQ(error.reason, "DRAINING") << error.text;
  engine_->LetGo();
  ExpectNothingLeft();
}

class LongHungDeviceTest : public DeviceFaultTest {};

// For a minute, by the server's looks once a second, which are made here.
TEST_P(LongHungDeviceTest, IsLostToAllItsCallsWhichEndBeforeItDoes) {
  const Place& place = GetParam();
  const auto expect_lost = [&](const grpc::Status& status) {
    const WireError error = Decode(status);
    EXPECT_EQ(error.code, grpc::StatusCode::UNAVAILABLE) << error.text;
    EXPECT_EQ(error.reason, "DEVICE_LOST") << error.text;
    EXPECT_NE(error.text.find("device cpu failed: it hangs"), std::string::npos) << error.text;
  };
  engine_->Hold(place.step, place.after);
  const auto held = Start(place.spec(), true);
  engine_->WaitUntilHeld();
  const auto waits = Start(Large(), true);
  while (server_->server().scheduler().CountByState()[static_cast<size_t>(RequestState::kReceiving)] > 0 ||
         server_->server().calls().size() < 2) {
    std::this_thread::yield();
  }
  for (int look = 0; look < 60; ++look) server_->server().scheduler().LookForHangs();
  expect_lost(held->Finish());
  expect_lost(waits->Finish());
  EXPECT_EQ(Health(), HealthCheckResponse::NOT_SERVING);
  expect_lost(Compute(*stub_, Small()).status);
  engine_->LetGo();
  ExpectNothingLeft();
}

INSTANTIATE_TEST_SUITE_P(TinyPlaces, LongHungDeviceTest, testing::ValuesIn(kTinyPlaces), NameOf);
// Host memory is not a device's work.
INSTANTIATE_TEST_SUITE_P(Places, LongHungDeviceTest, testing::ValuesIn(std::begin(kPlaces) + 2, std::end(kPlaces)),
                         NameOf);

class HungDeviceOfATinyRequestTest : public DeviceFaultTest {};

// The thread that took its last byte waits for the device: its call ends, for the server, with that wait.
TEST_P(HungDeviceOfATinyRequestTest, HoldsUpNoClientAndNoOtherCall) {
  const Place& place = GetParam();
  engine_->Hold(place.step, place.after);
  const auto held = Start(Tiny(), true);
  engine_->WaitUntilHeld();
  EXPECT_EQ(Health(), HealthCheckResponse::SERVING);
  for (int i = 0; i < 4; ++i) {
    ComputeStream behind(*stub_, std::chrono::milliseconds(100));
    behind.Send(Tiny());
    behind.SendInputs(Tiny());
    EXPECT_EQ(behind.Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  }
  held->Cancel();
  EXPECT_EQ(held->Finish().error_code(), grpc::StatusCode::CANCELLED);
  engine_->LetGo();
  EXPECT_TRUE(server_->CleanAndServing());
  EXPECT_TRUE(Compute(*stub_, Tiny()).outputs == Expected(Tiny()));
  ExpectNothingLeft();
}

INSTANTIATE_TEST_SUITE_P(TinyPlaces, HungDeviceOfATinyRequestTest, testing::ValuesIn(kTinyPlaces), NameOf);

using DeviceMemoryTest = DeviceFaultTest;

TEST_F(DeviceMemoryTest, ShortageFailsTheRequestAloneWithTheNumbersAndARetryDelay) {
  const absl::Status shortage = absl::ResourceExhaustedError("1 of 100 bytes are free");
  for (const v1::ComputeSpec& spec : {Tiny(), Small(), Large()}) {
    engine_->Fail(Step::kAllocate, shortage);
    const auto other = Start(Small(), false);
    ASSERT_TRUE(other->Receive().has_value());
    const WireError error = Decode(Compute(*stub_, spec).status);
    EXPECT_EQ(error.code, grpc::StatusCode::RESOURCE_EXHAUSTED) << error.text;
    EXPECT_EQ(error.reason, "QUEUE_FULL") << error.text;
    EXPECT_GT(error.retry_seconds.value_or(0), 0);
    EXPECT_EQ(error.text.rfind("cpu has no ", 0), 0u) << error.text;
    EXPECT_NE(error.text.find("1 of 100 bytes are free"), std::string::npos) << error.text;
    EXPECT_EQ(Health(), HealthCheckResponse::SERVING);
    EXPECT_TRUE(other->SendInputs(Small()));
    EXPECT_TRUE(ReceiveAll(*other).status.ok()) << "what was there besides goes on";
    EXPECT_TRUE(Compute(*stub_, spec).outputs == Expected(spec));
    ExpectNothingLeft();
  }
}

// As where a kernel's code is loaded at its first launch.
TEST_F(DeviceMemoryTest, ShortageAtWorkFailsTheRequestAloneToo) {
  for (const Step step : {Step::kCopyToDevice, Step::kLaunch, Step::kCopyToHost}) {
    for (const v1::ComputeSpec& spec : {Tiny(), Small(), Large()}) {
      engine_->Fail(step, absl::ResourceExhaustedError("1 of 100 bytes are free"));
      const WireError error = Decode(Compute(*stub_, spec).status);
      EXPECT_EQ(error.code, grpc::StatusCode::RESOURCE_EXHAUSTED) << error.text;
      EXPECT_EQ(error.reason, "QUEUE_FULL") << error.text;
      EXPECT_GT(error.retry_seconds.value_or(0), 0);
      EXPECT_NE(error.text.find("1 of 100 bytes are free"), std::string::npos) << error.text;
      EXPECT_EQ(Health(), HealthCheckResponse::SERVING);
      EXPECT_TRUE(Compute(*stub_, spec).outputs == Expected(spec));
      ExpectNothingLeft();
    }
  }
}

TEST_F(DeviceMemoryTest, ShortageOfHostMemoryIsTriedOnceMoreAndThenToldWithTheNumbers) {
  const absl::Status shortage = absl::ResourceExhaustedError("no pages");
  engine_->Fail(Step::kAllocateHost, shortage);
  EXPECT_TRUE(Compute(*stub_, Small()).status.ok()) << "what the cache held is given back, and it is asked once more";
  engine_->Fail(Step::kAllocateHost, shortage, 0, 2);
  const WireError error = Decode(Compute(*stub_, Large()).status);
  EXPECT_EQ(error.code, grpc::StatusCode::RESOURCE_EXHAUSTED) << error.text;
  EXPECT_EQ(error.reason, "QUEUE_FULL") << error.text;
  EXPECT_GT(error.retry_seconds.value_or(0), 0);
  EXPECT_NE(error.text.find("this machine has no 4194304 bytes of host memory left"), std::string::npos) << error.text;
  EXPECT_TRUE(server_->CleanAndServing());
  ExpectNothingLeft();
}

TEST_F(DeviceMemoryTest, PlanThatFailsRefusesTheRequestAlone) {
  engine_->Fail(Step::kMakePlan, absl::FailedPreconditionError("a workspace of 5 bytes; the device has 4"));
  const WireError error = Decode(Compute(*stub_, Small()).status);
  EXPECT_EQ(error.code, grpc::StatusCode::FAILED_PRECONDITION) << error.text;
  EXPECT_EQ(error.reason, "TOO_LARGE") << error.text;
  EXPECT_NE(error.text.find("a workspace of 5 bytes; the device has 4"), std::string::npos) << error.text;
  EXPECT_TRUE(server_->CleanAndServing());
  ExpectNothingLeft();
}

}  // namespace
}  // namespace flashbob::server
