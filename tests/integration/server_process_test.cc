// The real program: start, serve, stop.
#include "tests/integration/server_process.h"

#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <thread>

#include "reflection.grpc.pb.h"
#include "server/service/health.grpc.pb.h"
#include "tests/integration/http_get.h"
#include "tests/server/testing/compute_client.h"

namespace flashbob::integration {
namespace {

using server::Compute;
using server::Computed;
using server::ComputeStream;
using server::ConnectTo;
using server::Decode;
using server::ForwardSpec;
using server::WireError;
using std::chrono::milliseconds;
using std::chrono::seconds;

std::unique_ptr<v1::AttentionService::Stub> StubOf(const ServerProcess& process) {
  return v1::AttentionService::NewStub(ConnectTo(process.port()));
}

// FORWARD of one head of `length` queries on one key: o is v, on every row.
v1::ComputeSpec OneKey(int64_t length, int64_t dim) {
  v1::ComputeSpec spec = ForwardSpec(1, length, dim);
  for (int input : {1, 2}) spec.mutable_inputs(input)->mutable_tensor()->set_shape(2, 1);
  return spec;
}

TEST(ServerProcessTest, ComputesOnTheCpuEngine) {
  ServerProcess process = ServerProcess::Serve({"--devices", "cpu"});
  ASSERT_TRUE(process.serving()) << process.err();
  const auto stub = StubOf(process);
  ComputeStream stream(*stub);
  const v1::ComputeSpec spec = OneKey(3, 4);
  stream.Send(spec);
  const float v[] = {1.5f, -2, 0, 3e7f};
  stream.Send(0, 0, std::string(3 * 4 * 4, '\0'));
  stream.Send(1, 0, std::string(4 * 4, '\0'));
  stream.Send(2, 0, std::string(reinterpret_cast<const char*>(v), sizeof(v)));
  stream.CloseSending();
  const Computed computed = ReceiveAll(stream);
  ASSERT_TRUE(computed.status.ok()) << computed.status.error_message();
  ASSERT_EQ(computed.outputs[0].size(), 3 * sizeof(v));
  for (size_t row = 0; row < 3; ++row) {
    EXPECT_EQ(std::memcmp(computed.outputs[0].data() + row * sizeof(v), v, sizeof(v)), 0) << "row " << row;
  }
  EXPECT_EQ(computed.result->device(), "cpu");
}

TEST(ServerProcessTest, WithoutAGpuTheCpuServesAndTheLogSaysWhy) {
  setenv("CUDA_VISIBLE_DEVICES", "", 1);  // hides those of a machine that has some
  ServerProcess process = ServerProcess::Serve();
  unsetenv("CUDA_VISIBLE_DEVICES");
  ASSERT_TRUE(process.serving()) << process.err();
  const std::string log = process.err();
  EXPECT_NE(log.find("chosen=cpu why="), std::string::npos) << log;
  EXPECT_EQ(log.find("why=\"\""), std::string::npos) << log;
}

TEST(ServerProcessTest, ADeviceThatIsNotThereIsBadConfiguration) {
  ServerProcess process = ServerProcess::Start({"--devices", "cuda:4096"});
  EXPECT_EQ(process.Wait(seconds(20)), 2);
  EXPECT_NE(process.err().find("no device cuda:4096; this machine has cpu"), std::string::npos) << process.err();
}

TEST(ServerProcessTest, HealthIsServingForServerAndService) {
  ServerProcess process = ServerProcess::Serve();
  ASSERT_TRUE(process.serving()) << process.err();
  const auto stub = grpc::health::v1::Health::NewStub(ConnectTo(process.port()));
  for (const char* service : {"", "flashbob.v1.AttentionService"}) {
    grpc::ClientContext context;
    grpc::health::v1::HealthCheckRequest request;
    request.set_service(service);
    grpc::health::v1::HealthCheckResponse response;
    ASSERT_TRUE(stub->Check(&context, request, &response).ok());
    EXPECT_EQ(response.status(), grpc::health::v1::HealthCheckResponse::SERVING);
  }
}

TEST(ServerProcessTest, ReflectionListsTheService) {
  ServerProcess process = ServerProcess::Serve();
  ASSERT_TRUE(process.serving()) << process.err();
  const auto stub = grpc::reflection::v1alpha::ServerReflection::NewStub(ConnectTo(process.port()));
  grpc::ClientContext context;
  const auto stream = stub->ServerReflectionInfo(&context);
  grpc::reflection::v1alpha::ServerReflectionRequest request;
  request.set_list_services("*");
  grpc::reflection::v1alpha::ServerReflectionResponse response;
  ASSERT_TRUE(stream->Write(request));
  ASSERT_TRUE(stream->Read(&response));
  bool listed = false;
  for (const auto& service : response.list_services_response().service()) {
    listed |= service.name() == "flashbob.v1.AttentionService";
  }
  EXPECT_TRUE(listed) << response.ShortDebugString();
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
}

TEST(ServerProcessTest, MetricsAreServedOverHttp) {
  ServerProcess process = ServerProcess::Serve();
  ASSERT_TRUE(process.serving()) << process.err();
  ASSERT_TRUE(Compute(*StubOf(process), OneKey(8, 8)).status.ok());
  const std::string page = HttpGet(process.metrics_port(), "/metrics");
  EXPECT_EQ(page.rfind("HTTP/1.1 200", 0), 0u) << page.substr(0, 100);
  for (const char* line :
       {"flashbob_queue_limit 256", "flashbob_draining 0",
        "flashbob_requests_total{code=\"INVALID_ARGUMENT\",operation=\"forward\",tenant=\"default\"} 0"}) {
    EXPECT_NE(page.find(line), std::string::npos) << line;
  }
}

TEST(ServerProcessTest, PagesShowHealthReadinessAndWhatRequestsWaitFor) {
  ServerProcess process = ServerProcess::Serve();
  ASSERT_TRUE(process.serving()) << process.err();
  const auto stub = StubOf(process);
  ComputeStream uploading(*stub);
  v1::ComputeSpec spec = ForwardSpec(1, 8, 8);
  spec.set_request_id("<script>alert(1)</script>");
  uploading.Send(spec);
  ASSERT_TRUE(uploading.Receive().has_value());
  const auto begins_with = [&](const char* path, const std::string& head) {
    return HttpGet(process.metrics_port(), path).rfind("HTTP/1.1 " + head, 0) == 0;
  };
  EXPECT_TRUE(begins_with("/healthz", "200 OK"));
  EXPECT_TRUE(begins_with("/readyz", "200 OK"));
  EXPECT_TRUE(begins_with("/", "200 OK"));
  EXPECT_TRUE(begins_with("/other", "404 Not Found"));
  const std::string page = HttpGet(process.metrics_port(), "/statusz");
  for (const char* part : {"0 of 768 input bytes have come", "&lt;script&gt;alert(1)&lt;/script&gt;", "default"}) {
    EXPECT_NE(page.find(part), std::string::npos) << part << " in\n" << page;
  }
  EXPECT_EQ(page.find("<script"), std::string::npos);
}

// Protocol Buffers would write to stderr too, in words of its own.
TEST(ServerProcessTest, TextThatIsNoUtf8PutsNoLineOfItsOwnIntoTheLog) {
  ServerProcess process = ServerProcess::Serve({"--devices", "cpu", "--log-format", "json"});
  ASSERT_TRUE(process.serving()) << process.err();
  const auto stub = StubOf(process);
  ComputeStream stream(*stub);
  v1::ComputeSpec spec = OneKey(3, 4);
  spec.set_request_id("\xff\n");
  stream.Send(spec);
  const WireError error = Decode(stream.Finish());
  EXPECT_EQ(error.code, grpc::StatusCode::INVALID_ARGUMENT) << error.text;
  EXPECT_EQ(error.reason, "BAD_SPEC");
  process.Signal(SIGTERM);
  EXPECT_EQ(process.Wait(seconds(20)), 0);
  std::istringstream log(process.err());
  int lines = 0;
  for (std::string line; std::getline(log, line); ++lines) {
    EXPECT_TRUE(line.rfind("{\"time\":", 0) == 0 && line.back() == '}') << line;
  }
  EXPECT_GE(lines, 3) << process.err();
}

TEST(ServerProcessTest, DrainingServerIsAliveAndNotReady) {
  ServerProcess process = ServerProcess::Serve({"--grace-seconds", "20"});
  ASSERT_TRUE(process.serving()) << process.err();
  const auto stub = StubOf(process);
  ComputeStream uploading(*stub);
  const v1::ComputeSpec spec = ForwardSpec(1, 8, 8);
  uploading.Send(spec);
  ASSERT_TRUE(uploading.Receive().has_value());
  const int port = process.metrics_port();
  process.Signal(SIGTERM);
  std::string ready;
  while ((ready = HttpGet(port, "/readyz")).find("503") == std::string::npos && !ready.empty()) {
    std::this_thread::yield();
  }
  EXPECT_NE(ready.find("draining"), std::string::npos) << ready;
  EXPECT_NE(HttpGet(port, "/healthz").find("200 OK"), std::string::npos);
  EXPECT_NE(HttpGet(port, "/metrics").find("flashbob_ready 0"), std::string::npos);
  ASSERT_TRUE(uploading.SendInputs(spec));
  uploading.CloseSending();
  EXPECT_TRUE(uploading.Finish().ok()) << "what was let in is finished";
  EXPECT_EQ(process.Wait(seconds(20)), std::optional<int>(0)) << process.err();
}

TEST(ServerProcessTest, IdleServerEndsAtOnce) {
  ServerProcess process = ServerProcess::Serve({"--grace-seconds", "90"});
  ASSERT_TRUE(process.serving()) << process.err();
  process.Signal(SIGTERM);
  EXPECT_EQ(process.Wait(seconds(30)), std::optional<int>(0)) << "waits for nobody";
}

// Clients that keep a server busy until it refuses them, and what their calls ended with.
class Load {
 public:
  Load(int port, int clients) {
    for (int i = 0; i < clients; ++i) {
      threads_.emplace_back([this, port] { Run(port); });
    }
  }
  ~Load() { Stop(); }
  void Stop() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  // Waits until so many requests have been computed.
  void WaitForResults(int results) const {
    while (results_ < results) std::this_thread::yield();
  }
  int results() const { return results_; }
  // Ends that are neither a result nor a clean refusal, with their count; to be read after Stop.
  const std::map<std::string, int>& unclean() const { return unclean_; }

 private:
  void Run(int port) {
    const auto stub = v1::AttentionService::NewStub(ConnectTo(port));
    const v1::ComputeSpec spec = ForwardSpec(4, 256, 64);
    while (!stop_) {
      const Computed computed = Compute(*stub, spec);
      const WireError error = Decode(computed.status);
      if (computed.status.ok()) {
        ++results_;
        const bool whole = computed.outputs.size() == 2 && computed.outputs[0].size() == 4 * 256 * 64 * 4;
        if (!whole) Unclean("OK with less than the whole result");
        continue;
      }
      // Refused or ended by the draining server, or not let in any more.
      if (error.code != grpc::StatusCode::UNAVAILABLE) Unclean(computed.status.error_message());
      return;
    }
  }
  void Unclean(const std::string& what) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++unclean_[what];
  }

  std::atomic<bool> stop_ = false;
  std::atomic<int> results_ = 0;
  std::mutex mutex_;
  std::map<std::string, int> unclean_;
  std::vector<std::thread> threads_;
};

TEST(ServerProcessTest, TerminatedUnderLoadEndsEveryCallCleanlyAndExitsWithZeroInTime) {
  constexpr seconds kGrace(8);
  ServerProcess process = ServerProcess::Serve({"--grace-seconds", "8", "--idle-upload-seconds", "300"});
  ASSERT_TRUE(process.serving()) << process.err();

  // One call that only uploads, and one that computes for longer than anybody waits.
  const auto stub = StubOf(process);
  ComputeStream uploading(*stub);
  uploading.Send(ForwardSpec(1, 1000, 64));
  ASSERT_TRUE(uploading.Receive().has_value());
  Load load(process.port(), 6);
  load.WaitForResults(20);
  const v1::ComputeSpec endless = ForwardSpec(4, 65536, 128);
  ComputeStream computing(*stub);
  computing.Send(endless);
  ASSERT_TRUE(computing.SendInputs(endless));

  const auto told = std::chrono::steady_clock::now();
  process.Signal(SIGTERM);
  const std::optional<int> code = process.Wait(kGrace + seconds(10));
  const auto took = std::chrono::steady_clock::now() - told;
  ASSERT_TRUE(code.has_value()) << "it still runs\n" << process.err();
  EXPECT_EQ(*code, 0) << process.err();
  EXPECT_LE(took, kGrace);

  for (ComputeStream* stream : {&uploading, &computing}) {
    const WireError error = Decode(stream->Finish());
    EXPECT_EQ(error.code, grpc::StatusCode::UNAVAILABLE) << error.text;
    EXPECT_EQ(error.reason, "DRAINING") << error.text;
  }
  load.Stop();
  EXPECT_GE(load.results(), 20);
  for (const auto& [what, count] : load.unclean()) ADD_FAILURE() << count << " calls ended with: " << what;
}

TEST(ServerProcessTest, ClientThatTakesNothingOfItsResultDoesNotHoldUpTheEnd) {
  constexpr seconds kGrace(6);
  ServerProcess process = ServerProcess::Serve({"--grace-seconds", "6"});
  ASSERT_TRUE(process.serving()) << process.err();
  const auto stub = v1::AttentionService::NewStub(ConnectTo(process.port(), /*small_window=*/true));
  ComputeStream stream(*stub);
  const v1::ComputeSpec spec = OneKey(20000, 128);  // o of 10 MB
  stream.Send(spec);
  ASSERT_TRUE(stream.SendInputs(spec));
  while (!stream.Receive()->has_result()) {
  }
  const auto told = std::chrono::steady_clock::now();
  process.Signal(SIGTERM);
  const std::optional<int> code = process.Wait(kGrace + seconds(20));
  const auto took = std::chrono::steady_clock::now() - told;
  EXPECT_EQ(code, 0) << process.err();
  EXPECT_LE(took, kGrace);
  EXPECT_EQ(stream.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

// 256 MiB in and 256 out, on one key. Whole tensors in messages or strings would take as much again.
TEST(ServerProcessTest, LargeTensorsTakeLittleMoreMemoryThanTheirOwn) {
  constexpr int64_t kTensorBytes = int64_t{256} << 20;
  ServerProcess process = ServerProcess::Serve({"--host-memory-bytes", "1GiB"});
  ASSERT_TRUE(process.serving()) << process.err();
  const auto peak_bytes = [&] {
    std::ifstream status("/proc/" + std::to_string(process.pid()) + "/status");
    std::string line;
    while (std::getline(status, line)) {
      if (line.rfind("VmHWM:", 0) == 0) return std::strtoll(line.c_str() + 6, nullptr, 10) * 1024;
    }
    return -1LL;
  };
  const int64_t idle = peak_bytes();
  const auto stub = StubOf(process);
  const v1::ComputeSpec spec = OneKey(kTensorBytes / 64 / 4, 64);
  ComputeStream stream(*stub);
  stream.Send(spec);
  ASSERT_TRUE(stream.SendInputs(spec));
  stream.CloseSending();
  int64_t received = 0;
  while (const auto response = stream.Receive()) received += static_cast<int64_t>(response->chunk().data().size());
  ASSERT_TRUE(stream.Finish().ok());
  EXPECT_GT(received, kTensorBytes);
  const int64_t over = peak_bytes() - idle - 2 * kTensorBytes;
  std::printf("peak memory over the tensors: %.0f MiB\n", static_cast<double>(over) / (1 << 20));
  EXPECT_LE(over, kTensorBytes / 2);
}

TEST(ServerProcessTest, IdleServerStopsWithZero) {
  for (int signal : {SIGTERM, SIGINT}) {
    ServerProcess process = ServerProcess::Serve();
    ASSERT_TRUE(process.serving()) << process.err();
    process.Signal(signal);
    EXPECT_EQ(process.Wait(seconds(20)), 0) << process.err();
  }
}

TEST(ServerProcessTest, SecondSignalEndsItAtOnceWithAnError) {
  ServerProcess process = ServerProcess::Serve({"--grace-seconds", "3600"});
  ASSERT_TRUE(process.serving()) << process.err();
  const auto stub = StubOf(process);
  ComputeStream uploading(*stub);
  uploading.Send(ForwardSpec(1, 1000, 64));
  ASSERT_TRUE(uploading.Receive().has_value());
  process.Signal(SIGTERM);
  // Refusing new requests, it has begun to drain.
  while (Compute(*stub, OneKey(1, 1)).status.ok()) {
  }
  EXPECT_FALSE(process.Wait(milliseconds(0)).has_value());
  process.Signal(SIGTERM);
  const std::optional<int> code = process.Wait(seconds(20));
  ASSERT_TRUE(code.has_value());
  EXPECT_EQ(*code, 1);
}

TEST(ServerProcessTest, BadConfigurationIsExitCodeTwoWithItsPlace) {
  ServerProcess bad_flag = ServerProcess::Start({"--threads", "-1"});
  EXPECT_EQ(bad_flag.Wait(seconds(20)), 2);
  EXPECT_NE(bad_flag.err().find("threads is -1"), std::string::npos) << bad_flag.err();

  const std::string path = testing::TempDir() + "/" + std::to_string(getpid()) + "_bad_server.textproto";
  std::ofstream(path) << "listen: \"127.0.0.1:0\"\ngrace_seconds: soon\n";
  ServerProcess bad_file = ServerProcess::Start({"--config", path});
  EXPECT_EQ(bad_file.Wait(seconds(20)), 2);
  EXPECT_NE(bad_file.err().find("bad_server.textproto:2:16"), std::string::npos) << bad_file.err();
}

TEST(ServerProcessTest, PortThatIsTakenIsAnErrorThatNamesIt) {
  ServerProcess first = ServerProcess::Serve();
  ASSERT_TRUE(first.serving()) << first.err();
  const std::string taken = "127.0.0.1:" + std::to_string(first.port());
  ServerProcess second = ServerProcess::Start({"--listen", taken, "--metrics-listen", "off"});
  EXPECT_EQ(second.Wait(seconds(20)), 1);
  EXPECT_NE(second.err().find(taken), std::string::npos) << second.err();
}

TEST(ServerProcessTest, HelpGoesToStandardOutput) {
  ServerProcess help = ServerProcess::Start({"--help"});
  EXPECT_EQ(help.Wait(seconds(20)), 0);
  EXPECT_NE(help.out().find("Examples:"), std::string::npos);
  EXPECT_EQ(help.err(), "");
}

}  // namespace
}  // namespace flashbob::integration
