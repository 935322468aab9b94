#include "flashbob/client.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/client/fake_service.h"
#include "tests/client/small_problem.h"

namespace flashbob::client {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

TEST(ClientTest, OutputsAndWhatTheServerSaysOfThemComeBack) {
  const FakeService service({Echo(v1::TENSOR_NAME_O)});
  Client client = ConnectTo(service);
  const Problem problem;
  const absl::StatusOr<Result> result = client.Forward(problem.inputs());
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_NE(result->Find("o"), nullptr);
  EXPECT_EQ(result->Find("o")->shape(), kShape);
  const std::span<const float> o = result->Values<float>("o");
  EXPECT_EQ(std::vector<float>(o.begin(), o.end()), problem.q);
  EXPECT_TRUE(result->Values<double>("o").empty());
  EXPECT_EQ(result->Find("lse"), nullptr);
  EXPECT_EQ(result->timings.receive, nanoseconds(1));
  EXPECT_EQ(result->timings.queue, nanoseconds(2));
  EXPECT_EQ(result->timings.compute, seconds(3));
  EXPECT_EQ(result->device, "fake");
  EXPECT_EQ(result->flops, 100);
  EXPECT_EQ(result->request_id, service.Specs().front().request_id());
  EXPECT_FALSE(result->request_id.empty());
}

TEST(ClientTest, SpecSaysWhatTheOptionsSay) {
  const FakeService service({FailWith(grpc::Status::OK)});
  Client client = ConnectTo(service);
  const std::vector<float> values(24);
  const Shape packed = {6, 1, 4};
  client
      .Compute({.operation = Operation::kJvp,
                .options = {.layout = Layout::kTHD,
                            .window_left = 5,
                            .window_right = 2,
                            .alignment = Alignment::kBottomRight,
                            .scale = 0.25,
                            .probes = 2,
                            .cu_seqlens_q = {0, 2, 6},
                            .cu_seqlens_k = {0, 1, 6},
                            .allow_tf32 = true,
                            .deterministic = true},
                .inputs = {{"q", {values, packed}}, {"tk", {values, packed}}},
                .outputs = {{"to"}, {"tlse"}},
                .request_id = "chosen"})
      .status()
      .IgnoreError();
  const v1::ComputeSpec spec = service.Specs().front();
  EXPECT_EQ(spec.request_id(), "chosen");
  EXPECT_EQ(spec.operation(), v1::OPERATION_JVP);
  const v1::Problem& problem = spec.problem();
  EXPECT_EQ(problem.layout(), v1::LAYOUT_THD);
  EXPECT_EQ(problem.mask().left(), 5);
  EXPECT_EQ(problem.mask().right(), 2);
  EXPECT_EQ(problem.mask().alignment(), v1::MASK_ALIGNMENT_BOTTOM_RIGHT);
  EXPECT_EQ(problem.scale(), 0.25);
  EXPECT_EQ(problem.probes(), 2);
  EXPECT_EQ(std::vector<int64_t>(problem.cu_seqlens_q().begin(), problem.cu_seqlens_q().end()),
            (std::vector<int64_t>{0, 2, 6}));
  EXPECT_EQ(std::vector<int64_t>(problem.cu_seqlens_k().begin(), problem.cu_seqlens_k().end()),
            (std::vector<int64_t>{0, 1, 6}));
  EXPECT_TRUE(problem.deterministic());
  EXPECT_EQ(problem.fp32_precision(), v1::FP32_PRECISION_ALLOW_TF32);
  ASSERT_EQ(spec.inputs_size(), 2);
  EXPECT_EQ(spec.inputs(1).tensor().name(), v1::TENSOR_NAME_TK);
  EXPECT_EQ(spec.inputs(1).tensor().dtype(), v1::DATA_TYPE_FP32);
  EXPECT_EQ(spec.inputs(1).tensor().shape(0), 6);
  EXPECT_TRUE(spec.inputs(1).has_inline_());
  ASSERT_EQ(spec.outputs_size(), 2);
  EXPECT_EQ(spec.outputs(1).name(), v1::TENSOR_NAME_TLSE);
}

TEST(ClientTest, CausalClosesTheRightSideWhateverTheWindowSays) {
  const FakeService service({FailWith(grpc::Status::OK)});
  Client client = ConnectTo(service);
  const Problem problem;
  client.Forward(problem.inputs(), {.causal = true, .window_right = 9}).status().IgnoreError();
  client.Forward(problem.inputs()).status().IgnoreError();
  EXPECT_EQ(service.Specs()[0].problem().mask().right(), 0);
  EXPECT_EQ(service.Specs()[0].problem().mask().left(), -1);
  EXPECT_EQ(service.Specs()[1].problem().mask().right(), -1);
  EXPECT_FALSE(service.Specs()[1].problem().has_scale());
}

TEST(ClientTest, EachOperationSendsTheInputsThatAreGiven) {
  const FakeService service({FailWith(grpc::Status::OK)});
  Client client = ConnectTo(service);
  const Problem problem;
  Inputs inputs = problem.inputs();
  inputs.dout = {problem.q, kShape};
  client.Backward(inputs).status().IgnoreError();
  inputs.uv = {problem.q, kShape};
  client.DoubleBackward(inputs).status().IgnoreError();
  inputs.uv = {};
  inputs.tq = {problem.q, kShape};
  inputs.o = {problem.q, kShape};
  client.Jvp(inputs).status().IgnoreError();
  const auto names = [&](size_t call) {
    const v1::ComputeSpec spec = service.Specs()[call];
    std::string text = v1::Operation_Name(spec.operation());
    for (const auto& input : spec.inputs()) text += " " + v1::TensorName_Name(input.tensor().name());
    return text;
  };
  EXPECT_EQ(names(0), "OPERATION_BACKWARD TENSOR_NAME_Q TENSOR_NAME_K TENSOR_NAME_V TENSOR_NAME_DO");
  EXPECT_EQ(names(1),
            "OPERATION_DOUBLE_BACKWARD TENSOR_NAME_Q TENSOR_NAME_K TENSOR_NAME_V TENSOR_NAME_DO TENSOR_NAME_UV");
  EXPECT_EQ(names(2),
            "OPERATION_JVP TENSOR_NAME_Q TENSOR_NAME_K TENSOR_NAME_V TENSOR_NAME_DO TENSOR_NAME_TQ TENSOR_NAME_O");
}

TEST(ClientTest, InputsArriveInOrderInChunksOfTheSizeAskedFor) {
  std::vector<std::string> received;
  size_t largest = 0;
  int chunks = 0;
  const FakeService service({[&](grpc::ServerContext&, const v1::ComputeSpec& spec, ServerStream& stream) {
    received.resize(static_cast<size_t>(spec.inputs_size()));
    v1::ComputeRequest request;
    while (stream.Read(&request)) {
      EXPECT_EQ(request.chunk().byte_offset(), static_cast<int64_t>(received[request.chunk().tensor_index()].size()));
      received[request.chunk().tensor_index()] += request.chunk().data();
      largest = std::max(largest, request.chunk().data().size());
      ++chunks;
    }
    return grpc::Status::OK;
  }});
  ClientOptions options;
  options.chunk_bytes = 40;
  Client client = ConnectTo(service, options);
  const Problem problem;
  client.Forward(problem.inputs()).status().IgnoreError();
  ASSERT_EQ(received.size(), 3u);
  EXPECT_EQ(received[0], std::string(reinterpret_cast<const char*>(problem.q.data()), 96));
  EXPECT_EQ(received[1], std::string(reinterpret_cast<const char*>(problem.k.data()), 96));
  EXPECT_EQ(received[2], std::string(reinterpret_cast<const char*>(problem.v.data()), 96));
  EXPECT_EQ(largest, 40u);
  EXPECT_EQ(chunks, 9);
}

TEST(ClientTest, SmallAnswerIsOneMessage) {
  const FakeService service({[](grpc::ServerContext&, const v1::ComputeSpec& spec, ServerStream& stream) {
    const std::optional<std::vector<std::string>> inputs = ReadInputs(spec, stream);
    if (!inputs.has_value()) return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "no such tensor");
    v1::ComputeResponse answer = ResultOf(v1::TENSOR_NAME_O, kShape);
    *answer.mutable_result()->mutable_accepted() = Accepted(spec).accepted();
    answer.mutable_result()->mutable_tensors(0)->set_data(inputs->at(2));
    stream.Write(answer);
    return grpc::Status::OK;
  }});
  const Problem problem;
  const absl::StatusOr<Result> result = ConnectTo(service).Forward(problem.inputs());
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(service.Specs().front().brief_answer());
  EXPECT_EQ(result->flops, 100);
  const std::span<const float> o = result->Values<float>("o");
  EXPECT_EQ(std::vector<float>(o.begin(), o.end()), problem.v);
}

TEST(ClientTest, FirstOutputsMayComeWithinTheResultAndTheRestInChunks) {
  const Problem problem;
  const auto bytes = [](const std::vector<float>& values) {
    return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  };
  const std::string lse = bytes(problem.k);
  v1::ComputeResponse result = ResultOf(v1::TENSOR_NAME_O, kShape);
  result.mutable_result()->mutable_accepted()->set_estimated_flops(100);
  result.mutable_result()->mutable_tensors(0)->set_data(bytes(problem.v));
  const v1::ComputeResponse second = ResultOf(v1::TENSOR_NAME_LSE, kShape);
  *result.mutable_result()->add_tensors() = second.result().tensors(0);
  const FakeService service({AnswerWith({result, ChunkOf(1, 0, lse.substr(0, 40)), ChunkOf(1, 40, lse.substr(40))})});
  const absl::StatusOr<Result> answer = ConnectTo(service).Forward(problem.inputs());
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->flops, 100);
  const std::span<const float> o = answer->Values<float>("o");
  EXPECT_EQ(std::vector<float>(o.begin(), o.end()), problem.v);
  const std::span<const float> rows = answer->Values<float>("lse");
  EXPECT_EQ(std::vector<float>(rows.begin(), rows.end()), problem.k);
}

TEST(ClientTest, TensorsOverGrpcsDefaultMessageLimitPassBothWays) {
  const FakeService service({Echo(v1::TENSOR_NAME_O)});
  ClientOptions options;
  options.chunk_bytes = size_t{8} << 20;  // the fake answers in halves: chunks of 8 MiB come back, too
  Client client = ConnectTo(service, options);
  const std::vector<float> large = Iota(size_t{4} << 20, 1);
  const std::vector<float> small(64);
  const absl::StatusOr<Result> result =
      client.Forward({.q = {large, {1, 1, 65536, 64}}, .k = {small, {1, 1, 1, 64}}, .v = {small, {1, 1, 1, 64}}});
  ASSERT_TRUE(result.ok()) << result.status();
  const std::span<const float> o = result->Values<float>("o");
  EXPECT_TRUE(std::equal(o.begin(), o.end(), large.begin(), large.end()));
}

TEST(ClientTest, EmptyTensorsNeedNoChunks) {
  const FakeService service({Echo(v1::TENSOR_NAME_O)});
  Client client = ConnectTo(service);
  const Shape empty = {1, 2, 0, 4};
  const std::vector<float> none;
  const absl::StatusOr<Result> result = client.Forward({.q = {none, empty}, .k = {none, empty}, .v = {none, empty}});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->Find("o")->shape(), empty);
}

TEST(ClientTest, OutputsLandInTheCallersMemory) {
  const FakeService service({Echo(v1::TENSOR_NAME_O)});
  Client client = ConnectTo(service);
  const Problem problem;
  std::vector<float> o(24);
  const absl::StatusOr<Result> result =
      client.Compute({.inputs = problem.inputs().Named(), .outputs = {{"o", std::as_writable_bytes(std::span(o))}}});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(o, problem.q);
  EXPECT_EQ(result->Values<float>("o").data(), o.data());

  std::vector<float> too_small(23);
  const absl::StatusOr<Result> refused = client.Compute(
      {.inputs = problem.inputs().Named(), .outputs = {{"o", std::as_writable_bytes(std::span(too_small))}}});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Contains(refused.status(), "has 96 bytes; the memory given has 92")) << refused.status();
}

TEST(ClientTest, NonsenseIsRefusedBeforeAnythingIsSent) {
  const FakeService service({Echo(v1::TENSOR_NAME_O)});
  Client client = ConnectTo(service);
  const std::vector<float> values(24);
  const auto refusal = [&](NamedTensor input, std::vector<WantedOutput> outputs = {}) {
    const absl::StatusOr<Result> result = client.Compute({.inputs = {input}, .outputs = std::move(outputs)});
    EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(result.status().message());
  };
  EXPECT_EQ(refusal({"x", {values, kShape}}), "'x' is no tensor of attention");
  EXPECT_EQ(refusal({"Q", {values, kShape}}), "'Q' is no tensor of attention");
  EXPECT_EQ(refusal({"unspecified", {values, kShape}}), "'unspecified' is no tensor of attention");
  EXPECT_EQ(refusal({"q", {values, {5, 5}}}), "q has 96 bytes; fp32 [5, 5] needs 100");
  EXPECT_EQ(refusal({"q", {values, {-1, 5}}}), "q has 96 bytes; fp32 [-1, 5] needs an impossible number");
  EXPECT_EQ(refusal({"q", {values, {int64_t{1} << 40, int64_t{1} << 40}}}),
            "q has 96 bytes; fp32 [1099511627776, 1099511627776] needs an impossible number");
  EXPECT_EQ(refusal({"q", {values, kShape}}, {{"nothing"}}), "'nothing' is no tensor of attention");
  EXPECT_EQ(service.Calls(), 0);
}

TEST(ClientTest, ErrorsKeepCodeTextReasonNumbersAndDelay) {
  const FakeService service({FailWith(
      ErrorWithDetails(grpc::StatusCode::INVALID_ARGUMENT, "head dim is 0; it must be at least 1", "BAD_SPEC"))});
  Client client = ConnectTo(service);
  const Problem problem;
  const absl::Status status = client.Forward(problem.inputs()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "head dim is 0; it must be at least 1");
  EXPECT_EQ(ReasonOf(status), "BAD_SPEC");
  EXPECT_EQ(DetailsOf(status), (std::map<std::string, std::string>{{"limit", "7"}}));
  EXPECT_EQ(RetryDelayOf(status), std::nullopt);
  EXPECT_EQ(service.Calls(), 1);
}

TEST(ClientTest, StatusesWithoutDetailsHaveNone) {
  const absl::Status status = absl::UnavailableError("x");
  EXPECT_EQ(ReasonOf(status), "");
  EXPECT_TRUE(DetailsOf(status).empty());
  EXPECT_EQ(RetryDelayOf(status), std::nullopt);
}

TEST(ClientTest, RefusalDuringALargeUploadEndsItWithTheServersError) {
  const FakeService service({FailWith(
      ErrorWithDetails(grpc::StatusCode::FAILED_PRECONDITION, "67108864 bytes; the limit is 7", "TOO_LARGE"))});
  Client client = ConnectTo(service);
  const std::vector<float> large(size_t{16} << 20);
  const absl::Status status = client.Forward({.q = {large, {1, 1, 262144, 64}}}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(status), "TOO_LARGE");
}

TEST(ClientTest, SlowServerIsLeftWhenTheTimeoutEnds) {
  Gate gate;
  const FakeService service({HoldUntil(gate)});
  Client client = ConnectTo(service);
  const Problem problem;
  const absl::Status status = client.Forward(problem.inputs(), {}, {.timeout = milliseconds(50)}).status();
  gate.Open();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(Contains(status, "no result within 0.05 s")) << status;
}

TEST(ClientTest, CancellationEndsARunningCall) {
  Gate gate;
  const FakeService service({HoldUntil(gate)});
  Client client = ConnectTo(service);
  const Problem problem;
  Cancellation cancellation;
  const auto cancel_once_accepted = [&](const Progress& progress) {
    if (progress.phase == Progress::Phase::kQueued) cancellation.Cancel();
  };
  const absl::Status status =
      client.Forward(problem.inputs(), {}, {.cancellation = cancellation, .progress = cancel_once_accepted}).status();
  gate.Open();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(client.Forward(problem.inputs(), {}, {.cancellation = cancellation}).status().code(),
            absl::StatusCode::kCancelled);
  EXPECT_EQ(client.GetServerInfo({.cancellation = cancellation}).status().code(), absl::StatusCode::kCancelled);
}

TEST(ClientTest, ProgressTellsThePhasesInOrder) {
  const FakeService service({Echo(v1::TENSOR_NAME_O)});
  Client client = ConnectTo(service);
  const Problem problem;
  std::vector<Progress> seen;
  ASSERT_TRUE(client.Forward(problem.inputs(), {}, {.progress = [&](const Progress& p) { seen.push_back(p); }}).ok());
  using Phase = Progress::Phase;
  std::vector<std::tuple<Phase, double, double>> steps;
  for (const Progress& progress : seen) steps.emplace_back(progress.phase, progress.done, progress.total);
  const std::vector<std::tuple<Phase, double, double>> expected = {
      {Phase::kUploading, 0, 288},   {Phase::kUploading, 96, 288},  {Phase::kUploading, 192, 288},
      {Phase::kUploading, 288, 288}, {Phase::kQueued, 0, 100},      {Phase::kComputing, 50, 100},
      {Phase::kDownloading, 48, 96}, {Phase::kDownloading, 96, 96},
  };
  EXPECT_EQ(steps, expected);
  EXPECT_EQ(seen[4].queue_position, 3);
  EXPECT_EQ(seen[4].estimated_wait, milliseconds(5));
}

TEST(ClientTest, AnswersThatBreakTheProtocolAreErrorsThatSayHow) {
  const std::string bytes(96, 'x');
  const v1::ComputeResponse result = ResultOf(v1::TENSOR_NAME_O, kShape);
  v1::ComputeResponse unknown_dtype = result;
  unknown_dtype.mutable_result()->mutable_tensors(0)->mutable_tensor()->set_dtype(static_cast<v1::DataType>(99));
  v1::ComputeResponse within = result;
  within.mutable_result()->mutable_tensors(0)->set_data(bytes);
  v1::ComputeResponse too_short = result;
  too_short.mutable_result()->mutable_tensors(0)->set_data("1234");
  v1::ComputeResponse too_long = result;
  too_long.mutable_result()->mutable_tensors(0)->set_data(bytes + "1");
  v1::ComputeResponse twice = result;
  *twice.mutable_result()->add_tensors() = result.result().tensors(0);
  struct Case {
    std::vector<v1::ComputeResponse> answer;
    const char* expected;
  };
  const std::vector<Case> cases = {
      {{}, "without a result"},
      {{ChunkOf(0, 0, bytes)}, "a chunk of tensor 0 of 0"},
      {{result}, "sent 0 of the 96 bytes of o"},
      {{result, ChunkOf(0, 0, "1234")}, "sent 4 of the 96 bytes of o"},
      {{result, ChunkOf(1, 0, bytes)}, "a chunk of tensor 1 of 1"},
      {{result, ChunkOf(0, 4, "1234")}, "sent 4 bytes of o at 4; 96 at 0 were due"},
      {{result, ChunkOf(0, -4, "1234")}, "sent 4 bytes of o at -4"},
      {{result, ChunkOf(0, 0, bytes), ChunkOf(0, 0, bytes)}, "sent 96 bytes of o at 0; 0 at 96 were due"},
      {{result, ChunkOf(0, 0, bytes + "1")}, "sent 97 bytes of o at 0; 96 at 0 were due"},
      {{within, ChunkOf(0, 0, bytes)}, "sent 96 bytes of o at 0; 0 at 96 were due"},
      {{too_short}, "sent 4 of the 96 bytes of o"},
      {{too_long}, "sent 97 bytes of o at 0; 96 at 0 were due"},
      {{result, result}, "a second result"},
      {{twice}, "sent o twice"},
      {{unknown_dtype}, "unknown dtype 99"},
      {{ResultOf(static_cast<v1::TensorName>(99), kShape)}, "unknown name 99"},
      {{ResultOf(v1::TENSOR_NAME_LSE, kShape)}, "sent lse, which was not asked for"},
  };
  const Problem problem;
  for (const Case& c : cases) {
    const FakeService service({AnswerWith(c.answer)});
    const absl::Status status =
        ConnectTo(service).Compute({.inputs = problem.inputs().Named(), .outputs = {{"o"}}}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << c.expected;
    EXPECT_TRUE(Contains(status, c.expected)) << status << "\nexpected: " << c.expected;
  }
}

TEST(ClientTest, AnnouncementThatNoMemoryCanHoldIsAnError) {
  const FakeService service({AnswerWith({ResultOf(v1::TENSOR_NAME_O, {int64_t{1} << 58})})});
  const Problem problem;
  EXPECT_EQ(ConnectTo(service).Forward(problem.inputs()).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(ClientTest, ResultThatLacksAnOutputIsAnError) {
  const FakeService service({AnswerWith({ResultOf(v1::TENSOR_NAME_O, {0, 4})})});
  const Problem problem;
  const absl::Status status =
      ConnectTo(service).Compute({.inputs = problem.inputs().Named(), .outputs = {{"o"}, {"lse"}}}).status();
  EXPECT_TRUE(Contains(status, "lacks lse")) << status;
}

TEST(ClientTest, ServerThatIsNotThereIsNamedAtOnce) {
  std::string address;
  { address = FakeService({FailWith(grpc::Status::OK)}).address(); }
  const absl::Status status = Client::Connect({.server = address}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(Contains(status, address)) << status;

  // Without waiting, the first call finds out.
  absl::StatusOr<Client> lazy =
      Client::Connect({.server = address, .connect_timeout = nanoseconds(0), .retry = {.max_attempts = 1}});
  ASSERT_TRUE(lazy.ok());
  EXPECT_EQ(lazy->GetServerInfo().status().code(), absl::StatusCode::kUnavailable);
}

TEST(ClientTest, TokenGoesWithEveryCallAndNoneWhereThereIsNone) {
  std::vector<std::string> seen;
  const FakeService service({[&](grpc::ServerContext& context, const v1::ComputeSpec&, ServerStream&) {
    const auto it = context.client_metadata().find("authorization");
    seen.push_back(it == context.client_metadata().end() ? "none" : std::string(it->second.data(), it->second.size()));
    return grpc::Status::OK;
  }});
  const Problem problem;
  ClientOptions options;
  ConnectTo(service, options).Forward(problem.inputs()).status().IgnoreError();
  options.token = "secret";
  ConnectTo(service, options).Forward(problem.inputs()).status().IgnoreError();
  EXPECT_EQ(seen, (std::vector<std::string>{"none", "Bearer secret"}));
}

TEST(ClientTest, OptionsThatMakeNoSenseAreRefused) {
  const auto refused = [](const ClientOptions& options) {
    return Client::Connect(options).status().code() == absl::StatusCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused({.server = ""}));
  EXPECT_TRUE(refused({.token = "two\nlines"}));
  EXPECT_TRUE(refused({.chunk_bytes = 0}));
  EXPECT_TRUE(refused({.chunk_bytes = size_t{1} << 30}));
  EXPECT_TRUE(refused({.retry = {.max_attempts = 0}}));
  EXPECT_TRUE(refused({.retry = {.multiplier = 0.5}}));
  EXPECT_TRUE(refused({.retry = {.jitter = -1}}));
}

TEST(ClientTest, ServerInfoIsWhatTheServerSaid) {
  FakeService service({FailWith(grpc::Status::OK)});
  service.info.set_version("1.2.3");
  v1::Device& device = *service.info.add_devices();
  device.set_name("cuda:0");
  device.mutable_memory()->set_limit_bytes(1 << 20);
  device.set_compute_units(132);
  service.info.mutable_limits()->set_max_chunk_bytes(4 << 20);
  service.info.mutable_limits()->set_idle_upload_seconds(30);
  v1::Capability& capability = *service.info.add_capabilities();
  capability.add_operations(v1::OPERATION_JVP);
  capability.add_operations(static_cast<v1::Operation>(77));  // of a newer server
  capability.add_dtypes(v1::DATA_TYPE_BF16);
  capability.add_layouts(v1::LAYOUT_THD);
  capability.set_max_head_dim(256);
  service.info.mutable_tenant()->set_name("default");
  service.info.mutable_tenant()->set_in_flight(2);
  service.info.mutable_host_memory()->set_reserved_bytes(5);

  const absl::StatusOr<ServerInfo> info = ConnectTo(service).GetServerInfo();
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->version, "1.2.3");
  ASSERT_EQ(info->devices.size(), 1u);
  EXPECT_EQ(info->devices[0].name, "cuda:0");
  EXPECT_EQ(info->devices[0].memory.limit_bytes, 1 << 20);
  EXPECT_EQ(info->devices[0].compute_units, 132);
  EXPECT_EQ(info->limits.max_chunk_bytes, 4 << 20);
  EXPECT_EQ(info->limits.idle_upload_seconds, 30);
  ASSERT_EQ(info->capabilities.size(), 1u);
  EXPECT_EQ(info->capabilities[0].operations, std::vector<Operation>{Operation::kJvp});
  EXPECT_EQ(info->capabilities[0].dtypes, std::vector<DataType>{DataType::kBF16});
  EXPECT_EQ(info->capabilities[0].layouts, std::vector<Layout>{Layout::kTHD});
  EXPECT_EQ(info->capabilities[0].max_head_dim, 256);
  EXPECT_EQ(info->tenant.name, "default");
  EXPECT_EQ(info->tenant.in_flight, 2);
  EXPECT_EQ(info->host_memory.reserved_bytes, 5);
}

}  // namespace
}  // namespace flashbob::client
