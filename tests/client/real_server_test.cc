// Client library and program against a real server in this process, on the CPU engine.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "client/cli/embedded_backend.h"
#include "client/cli/host_buffer.h"
#include "client/cli/server_backend.h"
#include "flashbob/client.h"
#include "kernels/conformance/case.h"
#include "kernels/convert.h"
#include "kernels/cpu/cpu_engine.h"
#include "server/server.h"
#include "tests/client/program.h"
#include "tests/seed.h"

namespace flashbob::client {
namespace {

using conformance::CaseSpec;
using conformance::ConformanceCase;
using nlohmann::json;

// A server on a free port with 256 MiB of host memory.
class RealServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    server::ServerOptions options;
    options.listen = "127.0.0.1:0";
    options.metrics_listen = "";
    options.host_memory_bytes = 256 << 20;
    server::Server::Environment environment;
    environment.engines.push_back(cpu::CreateCpuEngine({}));
    environment.clock = &clock_;
    environment.log = &log_;
    absl::StatusOr<std::unique_ptr<server::Server>> started = server::Server::Start(options, std::move(environment));
    ASSERT_TRUE(started.ok()) << started.status();
    server_ = *std::move(started);
  }

  std::string address() const { return "127.0.0.1:" + std::to_string(server_->port()); }
  Client Connect(int max_attempts = 8) const {
    return Client::Connect({.server = address(), .retry = {.max_attempts = max_attempts}}).value();
  }
  // Whether all memory becomes free: a slice that runs when its call ends holds it a little longer.
  testing::AssertionResult NothingIsHeld() const {
    if (!server_->calls().WaitUntilEmpty(std::chrono::seconds(30))) {
      return testing::AssertionFailure() << "calls are still in flight";
    }
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (server_->HostMemory().reserved_bytes != 0) {
      if (std::chrono::steady_clock::now() > end) {
        return testing::AssertionFailure() << server_->HostMemory().reserved_bytes << " bytes are still reserved";
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return testing::AssertionSuccess();
  }

  const server::SteadyClock clock_{};
  server::EventLog log_{server::LogLevel::kError, server::LogFormat::kText};
  std::unique_ptr<server::Server> server_;
};

// The outputs of a computation on a backend.
std::map<TensorName, std::vector<std::byte>> OutputsOf(cli::Backend& backend, const ConformanceCase& c) {
  const Computation& computation = c.computation();
  const AttentionProblem& problem = computation.problem();
  TensorPointers pointers;
  std::map<TensorName, cli::HostBuffer> buffers;
  const auto allocate = [&](TensorName name) {
    cli::HostBuffer buffer = cli::HostBuffer::Create(static_cast<size_t>(problem.NumBytes(name))).value();
    pointers.Set(name, buffer.data());
    return buffers.emplace(name, std::move(buffer)).first->second.data();
  };
  const auto inputs = conformance::MakeInputs(c).value();
  for (const auto& [name, values] : inputs) FromDoubles(problem.DTypeOf(name), values, allocate(name));
  computation.outputs().ForEach(allocate);
  const absl::StatusOr<cli::Outcome> outcome = backend.Compute(computation, pointers, {});
  EXPECT_TRUE(outcome.ok()) << outcome.status();
  std::map<TensorName, std::vector<std::byte>> outputs;
  computation.outputs().ForEach([&](TensorName name) {
    const auto span = buffers.at(name).span();
    outputs[name] = {span.begin(), span.end()};
  });
  return outputs;
}

TEST_F(RealServerTest, EveryOperationGivesTheBitsThatTheEngineGivesInProcess) {
  const auto remote = cli::ConnectToServer(address(), std::nullopt, "", std::nullopt).value();
  const auto embedded = cli::MakeEmbeddedBackend("cpu").value();
  for (flashbob::Operation operation : kAllOperations) {
    CaseSpec spec;
    spec.operation = operation;
    spec.batch = 2;
    spec.heads = 4;
    spec.kv_heads = 2;
    spec.query_len = 150;
    spec.key_len = 67;
    spec.head_dim = 40;
    spec.value_dim = 24;
    spec.options.window_left = 50;
    spec.options.alignment = flashbob::Alignment::kBottomRight;
    spec.options.scale = 0.3;
    spec.seed = testing_seed::Seed();
    if (operation == flashbob::Operation::kDoubleBackward) spec.optional_inputs = {TensorName::kUq, TensorName::kUv};
    if (operation == flashbob::Operation::kJvp) {
      spec.options.probes = 2;
      spec.optional_inputs = {TensorName::kTk, TensorName::kDo, TensorName::kTdo};
    }
    const ConformanceCase c = ConformanceCase::Create(spec).value();
    EXPECT_EQ(OutputsOf(*remote, c), OutputsOf(*embedded, c)) << Name(operation);
  }
}

TEST_F(RealServerTest, TensorsOfManyChunksArriveWhole) {
  const auto remote = cli::ConnectToServer(address(), std::nullopt, "", std::nullopt).value();
  const auto embedded = cli::MakeEmbeddedBackend("cpu").value();
  CaseSpec spec;
  spec.operation = flashbob::Operation::kForward;
  spec.query_len = 20001;  // q and o: some more than 4 chunks of 1 MiB
  spec.key_len = 3;
  spec.head_dim = 61;
  spec.value_dim = 63;
  spec.options.layout = flashbob::Layout::kBNHD;
  spec.seed = testing_seed::Seed();
  const ConformanceCase c = ConformanceCase::Create(spec).value();
  EXPECT_EQ(OutputsOf(*remote, c), OutputsOf(*embedded, c));
}

TEST_F(RealServerTest, RefusalsCarryReasonAndNumbers) {
  Client client = Connect();
  const std::vector<float> values(3 * 8 * 300);
  const auto refusal = [&](const Shape& q, const Shape& k) {
    const auto view = [&](const Shape& shape) {
      return TensorView(std::span(values).first(static_cast<size_t>(*NumBytes(DataType::kFP32, shape)) / 4), shape);
    };
    return client.Forward({.q = view(q), .k = view(k), .v = view(k)}).status();
  };
  const absl::Status heads = refusal({1, 3, 8, 4}, {1, 2, 8, 4});
  EXPECT_EQ(heads.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReasonOf(heads), "BAD_SPEC");
  EXPECT_NE(std::string(heads.message()).find("q has 3 heads and k has 2"), std::string::npos) << heads;
  const absl::Status wide = refusal({1, 1, 8, 300}, {1, 1, 8, 300});
  EXPECT_EQ(wide.code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(ReasonOf(wide), "UNSUPPORTED_PROBLEM");

  const std::vector<float> large(size_t{32} << 20);
  const absl::Status too_large =
      client
          .Forward(
              {.q = {large, {1, 1, 524288, 64}}, .k = {large, {1, 1, 524288, 64}}, .v = {large, {1, 1, 524288, 64}}})
          .status();
  EXPECT_EQ(too_large.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(too_large), "TOO_LARGE");
  EXPECT_TRUE(NothingIsHeld());
}

// Double backward of 8 heads x 4096 tokens: seconds on any CPU of today.
class LongCall {
 public:
  Inputs inputs() const {
    const Shape shape = {1, 8, 4096, 64};
    return {.q = {values_, shape},
            .k = {values_, shape},
            .v = {values_, shape},
            .dout = {values_, shape},
            .uq = {values_, shape}};
  }

 private:
  const std::vector<float> values_ = std::vector<float>(8 * 4096 * 64, 0.01f);
};

TEST_F(RealServerTest, CancelledCallFreesTheServersMemory) {
  Client client = Connect();
  const LongCall call;
  Cancellation cancellation;
  const auto cancel_once_accepted = [&](const Progress& progress) {
    if (progress.phase == Progress::Phase::kQueued) cancellation.Cancel();
  };
  const absl::Status status =
      client.DoubleBackward(call.inputs(), {}, {.cancellation = cancellation, .progress = cancel_once_accepted})
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(NothingIsHeld());
}

TEST_F(RealServerTest, CallThatPassesItsDeadlineFreesTheServersMemory) {
  Client client = Connect();
  const LongCall call;
  const absl::Status status =
      client.DoubleBackward(call.inputs(), {}, {.timeout = std::chrono::milliseconds(300)}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_TRUE(NothingIsHeld());
}

TEST_F(RealServerTest, ProgressOfALongCallGrows) {
  Client client = Connect();
  const LongCall call;
  double last = 0;
  Cancellation cancellation;
  const auto watch = [&](const Progress& progress) {
    if (progress.phase != Progress::Phase::kComputing) return;
    EXPECT_GE(progress.done, last);
    EXPECT_LE(progress.done, progress.total);
    if (last > 0 && progress.done > last) cancellation.Cancel();  // seen enough
    last = progress.done;
  };
  const absl::Status status =
      client.DoubleBackward(call.inputs(), {}, {.cancellation = cancellation, .progress = watch}).status();
  EXPECT_GT(last, 0) << status;
}

TEST_F(RealServerTest, DrainingServerSaysSo) {
  Client client = Connect(/*max_attempts=*/1);
  server_->Drain(std::chrono::milliseconds(100));
  const absl::Status status = client.Forward(LongCall().inputs()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
}

TEST_F(RealServerTest, ServerInfoNamesDeviceLimitsAndTenant) {
  const ServerInfo info = Connect().GetServerInfo().value();
  ASSERT_EQ(info.devices.size(), 1u);
  EXPECT_EQ(info.devices[0].name, "cpu");
  EXPECT_GT(info.devices[0].compute_units, 0);
  EXPECT_GT(info.limits.max_chunk_bytes, 0);
  EXPECT_EQ(info.host_memory.limit_bytes, 256 << 20);
  EXPECT_EQ(info.tenant.name, "default");
  EXPECT_FALSE(info.capabilities.empty());
}

TEST_F(RealServerTest, ProgramRunsEveryCommand) {
  const auto run = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--server", address(), "--json"});
    const cli::ProgramResult result = cli::RunProgram(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
    return json::parse(result.out, nullptr, /*allow_exceptions=*/false);
  };
  EXPECT_EQ(run({"info"})["devices"][0]["name"], "cpu");
  EXPECT_EQ(run({"health"})["status"], "serving");

  const std::string seed = std::to_string(testing_seed::Seed());
  const json check = run({"check", "--op", "double_backward", "--seed", seed});
  EXPECT_EQ(check["ok"], true);
  EXPECT_GT(check["cases"].size(), 16u);

  const json bench = run({"bench", "--shape", "1,2,64,32", "--duration", "0.2", "--concurrency", "3"});
  EXPECT_GE(bench["requests"], 3);
  EXPECT_GT(bench["compute_ms"], 0);
  EXPECT_GT(bench["wire_ms"], 0);
  EXPECT_GE(bench["queue_ms"], 0);
}

}  // namespace
}  // namespace flashbob::client
