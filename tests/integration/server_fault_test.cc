// The real program on a device that fails or hangs, and killed in every state of a request: what clients see, and that
// the next server serves them.
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <functional>
#include <future>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "flashbob/client.h"
#include "kernels/cpu/cpu_engine.h"
#include "tests/integration/http_get.h"
#include "tests/integration/server_process.h"
#include "tests/seed.h"
#include "tests/server/testing/compute_client.h"

namespace flashbob::integration {
namespace {

using client::CallOptions;
using client::Client;
using client::Progress;
using client::Shape;
using server::Compute;
using server::Computed;
using server::ComputeStream;
using server::ConnectTo;
using server::Decode;
using server::ForwardSpec;
using server::WireError;
using std::chrono::milliseconds;
using std::chrono::seconds;

// The faulty server with a fault, where there is one.
ServerProcess Serve(const std::string& fault, std::vector<std::string> arguments = {}) {
  setenv("FLASHBOB_TEST_FAULT", fault.c_str(), 1);
  arguments.insert(arguments.end(), {"--devices", "cpu", "--threads", "1"});
  ServerProcess process = ServerProcess::Serve(arguments);
  unsetenv("FLASHBOB_TEST_FAULT");
  return process;
}

// Waits until a page or log has `text`; a failure that shows it where that takes far longer than anything here does.
void WaitFor(const std::string& text, const std::function<std::string()>& page) {
  const auto end = std::chrono::steady_clock::now() + seconds(60);
  while (page().find(text) == std::string::npos) {
    if (std::chrono::steady_clock::now() > end) {
      ADD_FAILURE() << "no " << text << " in\n" << page();
      return;
    }
    std::this_thread::sleep_for(milliseconds(2));
  }
}
void WaitForLog(const ServerProcess& process, const std::string& text) {
  WaitFor(text, [&] { return process.err(); });
}
void WaitForState(const ServerProcess& process, const std::string& state) {
  WaitFor("flashbob_requests_in_state{state=\"" + state + "\"} 1\n",
          [&] { return HttpGet(process.metrics_port(), "/metrics"); });
}

TEST(ServerFaultTest, LostDeviceEndsTheProcessWithOneOnceWhatItHeldHasEnded) {
  ServerProcess process = Serve("lose launch 1", {"--grace-seconds", "8"});
  ASSERT_TRUE(process.serving()) << process.err();
  const auto stub = v1::AttentionService::NewStub(ConnectTo(process.port()));
  const WireError error = Decode(Compute(*stub, ForwardSpec(2, 200, 16)).status);
  EXPECT_EQ(error.code, grpc::StatusCode::UNAVAILABLE) << error.text;
  EXPECT_EQ(error.reason, "DEVICE_LOST") << error.text;
  EXPECT_NE(error.text.find("device cpu failed: an illegal memory access"), std::string::npos) << error.text;
  EXPECT_EQ(process.Wait(seconds(30)), 1) << process.err();
  EXPECT_NE(process.err().find("device lost"), std::string::npos) << process.err();
}

TEST(ServerFaultTest, HungDeviceDoesNotKeepTheProcessFromItsEnd) {
  // The second is short enough to be computed by the thread that takes its last byte.
  const std::pair<v1::ComputeSpec, const char*> kRequests[] = {{ForwardSpec(2, 200, 16), "hold launch 1"},
                                                               {ForwardSpec(1, 16, 8), "hold launch"}};
  std::vector<ServerProcess> processes;
  std::vector<std::unique_ptr<ComputeStream>> running;
  for (const auto& [spec, fault] : kRequests) {
    processes.push_back(Serve(fault, {"--grace-seconds", "1"}));
    ASSERT_TRUE(processes.back().serving()) << processes.back().err();
    const auto stub = v1::AttentionService::NewStub(ConnectTo(processes.back().port()));
    running.push_back(std::make_unique<ComputeStream>(*stub));
    running.back()->Send(spec);
    ASSERT_TRUE(running.back()->SendInputs(spec));
    WaitForLog(processes.back(), "held launch");
  }
  const auto told = std::chrono::steady_clock::now();
  for (const ServerProcess& process : processes) process.Signal(SIGTERM);
  for (size_t i = 0; i < processes.size(); ++i) {
    const WireError error = Decode(running[i]->Finish());
    EXPECT_EQ(error.code, grpc::StatusCode::UNAVAILABLE) << error.text;
    EXPECT_EQ(processes[i].Wait(seconds(30)), 1) << processes[i].err();
    EXPECT_LT(std::chrono::steady_clock::now() - told, seconds(12));
    EXPECT_NE(processes[i].err().find("a device does not end its work"), std::string::npos) << processes[i].err();
  }
}

TEST(ServerFaultTest, WallClockThatJumpsMovesNoDeadline) {
  for (const char* jump : {"3600", "-3600"}) {
    setenv("FLASHBOB_TEST_WALL_CLOCK_JUMP", jump, 1);
    ServerProcess process = Serve("");
    unsetenv("FLASHBOB_TEST_WALL_CLOCK_JUMP");
    ASSERT_TRUE(process.serving()) << process.err();
    const auto stub = v1::AttentionService::NewStub(ConnectTo(process.port()));
    const v1::ComputeSpec spec = ForwardSpec(2, 200, 16);
    // Headers go with the first message: these two calls are known to the server before the jump.
    ComputeStream uploading(*stub, seconds(60));
    uploading.Send(spec);
    ASSERT_TRUE(uploading.Receive().has_value());
    ComputeStream short_lived(*stub, milliseconds(1500));
    short_lived.Send(spec);
    ASSERT_TRUE(short_lived.Receive().has_value());
    const auto began = std::chrono::steady_clock::now();
    process.Signal(SIGUSR2);
    ASSERT_TRUE(uploading.SendInputs(spec));
    uploading.CloseSending();
    const Computed computed = ReceiveAll(uploading);
    EXPECT_TRUE(computed.status.ok()) << computed.status.error_message();
    EXPECT_TRUE(Compute(*stub, spec).status.ok());
    EXPECT_EQ(short_lived.Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
    EXPECT_LT(std::chrono::steady_clock::now() - began, seconds(10));
    // What the server says of it in its log, after it has ended.
    WaitForLog(process, "code=DEADLINE_EXCEEDED");
    EXPECT_EQ(process.err().find("code=CANCELLED"), std::string::npos) << process.err();
  }
}

// A state of a request's life, and how one comes to be in it.
struct State {
  const char* name;
  const char* fault;
  const char* metric;        // the state in which /metrics shows it; null: the log shows "held"
  Progress::Phase stays_in;  // the client stops there, where it comes to it before the server is killed
};
void PrintTo(const State& state, std::ostream* out) { *out << state.name; }

class KilledServerTest : public testing::TestWithParam<State> {
 protected:
  static constexpr int64_t kDim = 64;

  KilledServerTest() : inputs_(3, std::vector<float>(length_ * kDim)) {
    std::mt19937_64 random(testing_seed::Seed());
    std::normal_distribution<float> normal;
    for (auto& tensor : inputs_) {
      for (float& value : tensor) value = normal(random);
    }
  }

  // q against 16 keys: quick, with a large output.
  client::Inputs Inputs() const {
    const Shape keys = {1, 1, 16, kDim};
    const auto few = [&](const std::vector<float>& all) { return std::span(all).first(16 * kDim); };
    return {.q = {inputs_[0], {1, 1, length_, kDim}}, .k = {few(inputs_[1]), keys}, .v = {few(inputs_[2]), keys}};
  }
  std::vector<float> Expected() const {
    const Shape queries = {1, 1, length_, kDim};
    const Shape keys = {1, 1, 16, kDim};
    const absl::StatusOr<Computation> computation = Computation::Create(Operation::kForward, {},
                                                                        {{TensorName::kQ, DType::kFloat32, queries},
                                                                         {TensorName::kK, DType::kFloat32, keys},
                                                                         {TensorName::kV, DType::kFloat32, keys}},
                                                                        {TensorName::kO});
    std::vector<float> o(length_ * kDim);
    TensorPointers tensors;
    tensors.SetInput(TensorName::kQ, inputs_[0].data());
    tensors.SetInput(TensorName::kK, inputs_[1].data());
    tensors.SetInput(TensorName::kV, inputs_[2].data());
    tensors.Set(TensorName::kO, o.data());
    EXPECT_TRUE(RunToCompletion(*cpu::CreateCpuEngine({}), *computation, tensors).ok());
    return o;
  }

  static Client Connect(const std::string& address, int max_attempts) {
    return Client::Connect({.server = address, .retry = {.max_attempts = max_attempts}, .chunk_bytes = 64 << 10})
        .value();
  }

  // A client's call that has come to the state, and stays there.
  struct Held {
    std::promise<void> let_go;
    std::promise<void> arrived;
    absl::StatusOr<client::Result> result = absl::UnknownError("none yet");
    std::thread thread;
  };
  std::unique_ptr<Held> Begin(int max_attempts) const {
    auto held = std::make_unique<Held>();
    const auto stays_in = GetParam().stays_in;
    held->thread = std::thread([this, max_attempts, stays_in, held = held.get()] {
      Client client = Connect(address_, max_attempts);
      CallOptions call;
      bool first = true;
      call.progress = [&](const Progress& progress) {
        const bool under_way = progress.phase != Progress::Phase::kUploading || progress.done > 0;
        if (!first || progress.phase != stays_in || !under_way) return;
        first = false;
        held->arrived.set_value();
        held->let_go.get_future().wait();
      };
      held->result = client.Forward(Inputs(), {}, call);
    });
    return held;
  }

  // Brings a call to the state, kills the server, and starts `next` in its place, where that is wanted.
  absl::StatusOr<client::Result> KillIn(bool start_next, int max_attempts) {
    const State& state = GetParam();
    const bool waits_for_memory = std::string(state.name) == "WaitingForHostMemory";
    ServerProcess server = Serve(
        state.fault, {"--listen", OwnLoopback() + ":0", "--host-memory-bytes", waits_for_memory ? "4MiB" : "64MiB"});
    EXPECT_TRUE(server.serving()) << server.err();
    address_ = OwnLoopback() + ":" + std::to_string(server.port());
    const auto stub = v1::AttentionService::NewStub(ConnectTo(address_));
    std::unique_ptr<ComputeStream> before;
    if (waits_for_memory || std::string(state.name) == "Queued") {
      // One that takes most of the memory, or the device.
      const v1::ComputeSpec spec = ForwardSpec(1, waits_for_memory ? 3000 : 64, 64);
      before = std::make_unique<ComputeStream>(*stub);
      before->Send(spec);
      EXPECT_TRUE(before->Receive().has_value());
      if (!waits_for_memory) {
        before->SendInputs(spec);
        WaitForLog(server, "held launch");
      }
    }
    const auto held = Begin(max_attempts);
    if (state.stays_in == Progress::Phase::kUploading || state.stays_in == Progress::Phase::kDownloading) {
      held->arrived.get_future().wait();
    }
    if (state.metric != nullptr) {
      WaitForState(server, state.metric);
    } else {
      WaitForLog(server, "held ");
    }
    server.Signal(SIGKILL);
    EXPECT_EQ(server.Wait(seconds(10)), 128 + SIGKILL);
    if (before != nullptr) {
      EXPECT_EQ(before->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
    }
    std::optional<ServerProcess> next;
    if (start_next) {
      next.emplace(Serve("", {"--listen", address_}));
      EXPECT_TRUE(next->serving()) << "the port is free at once\n" << next->err();
    }
    held->let_go.set_value();
    held->thread.join();
    if (next.has_value()) {
      next->Signal(SIGTERM);
      EXPECT_EQ(next->Wait(seconds(20)), 0) << next->err();
    }
    return std::move(held->result);
  }

  // Where the client takes nothing of its output, that must be more than flow control lets pass.
  const int64_t length_ = GetParam().stays_in == Progress::Phase::kDownloading ? 65536 : 4096;
  std::vector<std::vector<float>> inputs_;
  std::string address_;
};

TEST_P(KilledServerTest, IsNamedInTheErrorOfAClientThatDoesNotRetry) {
  const absl::Status status = KillIn(false, 1).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_EQ(std::string(status.message()).rfind("server " + address_, 0), 0u) << status;
}

TEST_P(KilledServerTest, CostsARetryOnTheNextOneAndNotTheAnswer) {
  const absl::StatusOr<client::Result> result = KillIn(true, 50);
  ASSERT_TRUE(result.ok()) << result.status();
  const std::span<const float> o = result->Values<float>("o");
  EXPECT_EQ(std::vector<float>(o.begin(), o.end()), Expected());
}

// kComputing: the client's progress does not stop there, for it tells of the second slice on.
constexpr State kStates[] = {
    {"Receiving", "", "receiving", Progress::Phase::kUploading},
    {"WaitingForHostMemory", "", "validated", Progress::Phase::kComputing},
    {"Queued", "hold launch", "ready", Progress::Phase::kComputing},
    {"AllocatingOnTheDevice", "hold allocate", nullptr, Progress::Phase::kComputing},
    {"CopyingIn", "hold copy_to_device 1", nullptr, Progress::Phase::kComputing},
    {"Running", "hold launch 1", nullptr, Progress::Phase::kComputing},
    {"CopyingOut", "hold copy_to_host", nullptr, Progress::Phase::kComputing},
    {"Sending", "", "sending", Progress::Phase::kDownloading},
};
INSTANTIATE_TEST_SUITE_P(States, KilledServerTest, testing::ValuesIn(kStates),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace flashbob::integration
