// Session of the C++ client against the real program: what crosses the wire, and what a killed server costs.
#include "flashbob/session.h"

#include <gtest/gtest.h>

#include <csignal>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/integration/http_get.h"
#include "tests/integration/server_process.h"
#include "tests/seed.h"

namespace flashbob::client {
namespace {

using integration::HttpGet;
using integration::ServerProcess;

const Shape kShape = {1, 2, 100, 16};
constexpr int64_t kBytes = 2 * 100 * 16 * 4;

int64_t Counter(const ServerProcess& process, const std::string& name) {
  const std::string page = HttpGet(process.metrics_port(), "/metrics");
  const size_t at = page.find("\n" + name + " ");
  return at == std::string::npos ? -1 : static_cast<int64_t>(std::strtod(page.c_str() + at + name.size() + 2, nullptr));
}
int64_t Received(const ServerProcess& process) { return Counter(process, "flashbob_received_bytes_total"); }
int64_t Sent(const ServerProcess& process) { return Counter(process, "flashbob_sent_bytes_total"); }

// The tensors of a layer, by name.
struct Layer {
  Layer() {
    std::mt19937_64 random(testing_seed::Seed());
    std::normal_distribution<float> normal;
    for (const char* name : {"q", "k", "v", "do", "uq"}) {
      std::vector<float>& of_name = values[name];
      of_name.resize(kBytes / 4);
      for (float& value : of_name) value = normal(random);
    }
  }
  TensorView view(const std::string& name) const { return {values.at(name), kShape}; }

  std::map<std::string, std::vector<float>> values;
};

// Forward, backward and double backward of a layer, whose tensors stay on the server; the session that does it.
struct Steps {
  explicit Steps(Client client) : session(std::move(client)) {
    for (const auto& [name, values] : layer.values) tensors.emplace(name, session.Keep(name, layer.view(name)));
  }

  SessionRequest Request(Operation operation, const std::vector<std::string>& inputs,
                         const std::vector<std::string>& outputs, const std::vector<std::string>& keep) const {
    SessionRequest request{.operation = operation, .options = {.causal = true}, .keep = keep};
    for (const std::string& name : inputs) request.inputs.push_back({name, tensors.at(name)});
    for (const std::string& name : outputs) request.outputs.push_back({.name = name});
    return request;
  }
  void Run(const SessionRequest& request) {
    absl::StatusOr<SessionResult> result = session.Compute(request);
    ASSERT_TRUE(result.ok()) << result.status();
    for (auto& [name, kept] : result->kept) tensors.insert_or_assign(name, kept);
    for (NamedOutput& output : result->result.outputs) {
      const std::span<const float> values = output.tensor.Values<float>();
      outputs[output.name].assign(values.begin(), values.end());
    }
  }
  void Forward() { Run(Request(Operation::kForward, {"q", "k", "v"}, {}, {"o", "lse"})); }
  void Backward() { Run(Request(Operation::kBackward, {"q", "k", "v", "do", "o", "lse"}, {"dq", "dk", "dv"}, {})); }
  void DoubleBackward() {
    Run(Request(Operation::kDoubleBackward, {"q", "k", "v", "do", "uq", "o", "lse"}, {"gq", "gk", "gv", "gdo"}, {}));
  }

  Layer layer;
  Session session;
  std::map<std::string, KeptTensor> tensors;
  std::map<std::string, std::vector<float>> outputs;
};

Client Connect(const std::string& address) {
  return Client::Connect({.server = address, .retry = {.max_attempts = 50}}).value();
}
Client Connect(const ServerProcess& process) { return Connect("127.0.0.1:" + std::to_string(process.port())); }

ServerProcess ServeAt(const std::string& address) { return ServerProcess::Serve({"--listen", address}); }
// Of a server at OwnLoopback, where the one after it can listen.
std::string AddressOf(const ServerProcess& process) {
  return integration::OwnLoopback() + ":" + std::to_string(process.port());
}

// What the steps give where every tensor is sent with every call.
std::map<std::string, std::vector<float>> Expected(Client client, const Layer& layer) {
  std::map<std::string, std::vector<float>> outputs;
  const auto take = [&](const absl::StatusOr<Result>& result) {
    ASSERT_TRUE(result.ok()) << result.status();
    for (const NamedOutput& output : result->outputs) {
      const std::span<const float> values = output.tensor.Values<float>();
      outputs[output.name].assign(values.begin(), values.end());
    }
  };
  Inputs inputs{.q = layer.view("q"), .k = layer.view("k"), .v = layer.view("v"), .dout = layer.view("do")};
  const absl::StatusOr<Result> forward =
      client.Forward({.q = inputs.q, .k = inputs.k, .v = inputs.v}, {.causal = true});
  EXPECT_TRUE(forward.ok()) << forward.status();
  inputs.o = forward->Find("o")->view();
  inputs.lse = forward->Find("lse")->view();
  take(client.Backward(inputs, {.causal = true}));
  inputs.uq = layer.view("uq");
  take(client.DoubleBackward(inputs, {.causal = true}));
  return outputs;
}

TEST(SessionTest, EachTensorOfALayerCrossesTheWireOnce) {
  ServerProcess process = ServerProcess::Serve();
  ASSERT_TRUE(process.serving()) << process.err();
  Steps steps(Connect(process));
  steps.Forward();
  steps.Backward();
  steps.DoubleBackward();
  EXPECT_EQ(Received(process), 5 * kBytes) << "q, k, v, do and uq";
  EXPECT_EQ(Sent(process), 7 * kBytes) << "dq, dk, dv, gq, gk, gv and gdo";
  EXPECT_EQ(steps.outputs, Expected(Connect(process), steps.layer)) << "the same bits";
}

TEST(SessionTest, ServerThatIsKilledInTheMiddleCostsOneMoreUpload) {
  auto first = std::make_unique<ServerProcess>(ServeAt(integration::OwnLoopback() + ":0"));
  ASSERT_TRUE(first->serving()) << first->err();
  const std::string address = AddressOf(*first);
  Steps steps(Connect(address));
  steps.Forward();
  steps.Backward();
  first->Signal(SIGKILL);
  ASSERT_EQ(first->Wait(std::chrono::seconds(10)), 128 + SIGKILL);
  ServerProcess second = ServeAt(address);
  ASSERT_TRUE(second.serving()) << second.err();
  ASSERT_EQ(AddressOf(second), address);
  steps.DoubleBackward();
  EXPECT_EQ(Received(second), 5 * kBytes) << "q, k, v, do and uq; o and lse are computed again";
  EXPECT_EQ(steps.outputs, Expected(Connect(address), steps.layer)) << "the same bits";
}

TEST(SessionTest, KeptOutputsComeHereAlsoAfterARestart) {
  auto first = std::make_unique<ServerProcess>(ServeAt(integration::OwnLoopback() + ":0"));
  ASSERT_TRUE(first->serving()) << first->err();
  const std::string address = AddressOf(*first);
  Steps steps(Connect(address));
  steps.Forward();
  const absl::StatusOr<Tensor> before = steps.session.Fetch(steps.tensors.at("o"));
  ASSERT_TRUE(before.ok()) << before.status();
  first.reset();
  ServerProcess second = ServeAt(address);
  ASSERT_TRUE(second.serving()) << second.err();
  const absl::StatusOr<Tensor> after = steps.session.Fetch(steps.tensors.at("o"));
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_EQ(std::vector<float>(before->Values<float>().begin(), before->Values<float>().end()),
            std::vector<float>(after->Values<float>().begin(), after->Values<float>().end()));
}

TEST(SessionTest, WhatNobodyNamesIsDeleted) {
  ServerProcess process = ServerProcess::Serve();
  ASSERT_TRUE(process.serving()) << process.err();
  Client client = Connect(process);
  {
    Steps steps(client);
    steps.Forward();
    EXPECT_GT(client.GetServerInfo()->tenant.used_bytes, 0);
    steps.tensors.clear();
  }
  // The server lets go of a call's memory a little after its client has heard the end.
  int64_t used = -1;
  for (int i = 0; i < 1000 && used != 0; ++i) {
    used = client.GetServerInfo()->tenant.used_bytes;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(used, 0);
}

TEST(SessionTest, ErrorsThatNoRestoreMendsAreTheCallers) {
  ServerProcess process = ServerProcess::Serve();
  ASSERT_TRUE(process.serving()) << process.err();
  Steps steps(Connect(process));
  const absl::Status nothing = steps.session.Compute({.operation = Operation::kForward}).status();
  EXPECT_EQ(nothing.code(), absl::StatusCode::kInvalidArgument) << nothing;
  const absl::Status lacking =
      steps.session.Compute(steps.Request(Operation::kForward, {"q", "k"}, {"o"}, {})).status();
  EXPECT_EQ(lacking.code(), absl::StatusCode::kInvalidArgument) << lacking;
  EXPECT_EQ(ReasonOf(lacking), "BAD_SPEC");
}

}  // namespace
}  // namespace flashbob::client
