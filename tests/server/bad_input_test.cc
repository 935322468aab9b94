// Bad input over the wire: each kind gets a clear error that names the numbers, with code and reason; afterwards all
// memory is free and the server serves.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "tests/server/testing/test_server.h"

namespace flashbob::server {
namespace {

struct BadSpec {
  const char* name;
  std::function<void(v1::ComputeSpec&)> spoil;  // what is wrong with a FORWARD of [1, 2, 16, 8]
  grpc::StatusCode code;
  const char* reason;
  std::vector<std::string> named;  // what the text must contain
};

void PrintTo(const BadSpec& bad, std::ostream* out) { *out << bad.name; }

void SetShape(v1::ComputeSpec& spec, int input, const std::vector<int64_t>& shape) {
  spec.mutable_inputs(input)->mutable_tensor()->clear_shape();
  for (int64_t extent : shape) spec.mutable_inputs(input)->mutable_tensor()->add_shape(extent);
}

void SetShapes(v1::ComputeSpec& spec, const std::vector<int64_t>& shape) {
  for (int input = 0; input < spec.inputs_size(); ++input) SetShape(spec, input, shape);
}

// Makes it a packed batch of 16 rows.
void Pack(v1::ComputeSpec& spec, const std::vector<int64_t>& starts) {
  spec.mutable_problem()->set_layout(v1::LAYOUT_THD);
  SetShapes(spec, {16, 2, 8});
  for (int64_t start : starts) {
    spec.mutable_problem()->add_cu_seqlens_q(start);
    spec.mutable_problem()->add_cu_seqlens_k(start);
  }
}

constexpr grpc::StatusCode kInvalid = grpc::StatusCode::INVALID_ARGUMENT;
constexpr grpc::StatusCode kUnimplemented = grpc::StatusCode::UNIMPLEMENTED;
constexpr grpc::StatusCode kFailed = grpc::StatusCode::FAILED_PRECONDITION;

const BadSpec kBadSpecs[] = {
    {"NoOperation", [](auto& spec) { spec.clear_operation(); }, kInvalid, "BAD_SPEC", {"operation 0"}},
    {"UnknownOperation",
     [](auto& spec) { spec.set_operation(static_cast<v1::Operation>(99)); },
     kInvalid,
     "BAD_SPEC",
     {"operation 99"}},
    {"UnknownLayout",
     [](auto& spec) { spec.mutable_problem()->set_layout(static_cast<v1::Layout>(99)); },
     kInvalid,
     "BAD_SPEC",
     {"layout 99"}},
    {"UnknownDataType",
     [](auto& spec) { spec.mutable_inputs(1)->mutable_tensor()->set_dtype(static_cast<v1::DataType>(99)); },
     kInvalid,
     "BAD_SPEC",
     {"input k", "data type 99"}},
    {"UnknownTensorName",
     [](auto& spec) { spec.mutable_inputs(1)->mutable_tensor()->set_name(static_cast<v1::TensorName>(99)); },
     kInvalid,
     "BAD_SPEC",
     {"input 1", "name 99"}},
    {"NegativeTensorName",
     [](auto& spec) { spec.mutable_inputs(1)->mutable_tensor()->set_name(static_cast<v1::TensorName>(-5)); },
     kInvalid,
     "BAD_SPEC",
     {"name -5"}},
    {"UnknownAlignment",
     [](auto& spec) { spec.mutable_problem()->mutable_mask()->set_alignment(static_cast<v1::MaskAlignment>(99)); },
     kInvalid,
     "BAD_SPEC",
     {"alignment 99"}},
    {"UnknownPrecision",
     [](auto& spec) { spec.mutable_problem()->set_fp32_precision(static_cast<v1::Fp32Precision>(99)); },
     kInvalid,
     "BAD_SPEC",
     {"precision 99"}},
    {"NegativeExtent",
     [](auto& spec) {
       SetShapes(spec, {1, 2, -16, 8});
     },
     kInvalid,
     "BAD_SPEC",
     {"[1, 2, -16, 8]"}},
    {"ShapePastAllMemory",
     [](auto& spec) {
       SetShapes(spec, {1, 2, int64_t{1} << 40, 8});
     },
     kFailed,
     "TOO_LARGE",
     {"211106232532992", "16777216"}},
    {"OverflowingShape",
     [](auto& spec) {
       SetShapes(spec, {int64_t{1} << 40, 2, int64_t{1} << 40, 8});
     },
     kInvalid,
     "BAD_SPEC",
     {"1099511627776"}},
    {"LargestExtents",
     [](auto& spec) { SetShapes(spec, std::vector<int64_t>(4, std::numeric_limits<int64_t>::max())); },
     kInvalid,
     "BAD_SPEC",
     {"9223372036854775807"}},
    {"HugeAndEmptyShape",
     [](auto& spec) {
       SetShapes(spec, {0, 2, std::numeric_limits<int64_t>::max(), 8});
     },
     kInvalid,
     "BAD_SPEC",
     {"9223372036854775807"}},
    {"TooFewAxes",
     [](auto& spec) {
       SetShapes(spec, {16, 8});
     },
     kInvalid,
     "BAD_SPEC",
     {"2 axes", "[16, 8]"}},
    {"TooManyAxes",
     [](auto& spec) { SetShapes(spec, std::vector<int64_t>(100000, 1)); },
     kInvalid,
     "BAD_SPEC",
     {"100000 axes"}},
    {"HeadsThatDoNotDivide",
     [](auto& spec) {
       SetShape(spec, 0, {1, 6, 16, 8});
       SetShape(spec, 1, {1, 4, 16, 8});
       SetShape(spec, 2, {1, 4, 16, 8});
     },
     kInvalid,
     "BAD_SPEC",
     {"6 heads", "4"}},
    {"LengthsThatDiffer",
     [](auto& spec) {
       SetShape(spec, 2, {1, 2, 17, 8});
     },
     kInvalid,
     "BAD_SPEC",
     {"[1, 2, 17, 8]", "[1, 2, 16, 8]"}},
    {"DataTypesThatDiffer",
     [](auto& spec) { spec.mutable_inputs(2)->mutable_tensor()->set_dtype(v1::DATA_TYPE_BF16); },
     kInvalid,
     "BAD_SPEC",
     {"v is bf16", "fp32"}},
    {"HeadDimTooLarge",
     [](auto& spec) {
       SetShapes(spec, {1, 2, 16, 300});
     },
     kUnimplemented,
     "UNSUPPORTED_PROBLEM",
     {"300", "256"}},
    {"HeadDimZero",
     [](auto& spec) {
       SetShapes(spec, {1, 2, 16, 0});
     },
     kInvalid,
     "BAD_SPEC",
     {"head dim is 0"}},
    {"NanScale",
     [](auto& spec) { spec.mutable_problem()->set_scale(std::nan("")); },
     kInvalid,
     "BAD_SPEC",
     {"scale is nan"}},
    {"InfiniteScale",
     [](auto& spec) { spec.mutable_problem()->set_scale(std::numeric_limits<double>::infinity()); },
     kInvalid,
     "BAD_SPEC",
     {"scale is inf"}},
    {"WindowBelowMinusOne",
     [](auto& spec) { spec.mutable_problem()->mutable_mask()->set_left(-2); },
     kInvalid,
     "BAD_SPEC",
     {"-2"}},
    {"NegativeProbes", [](auto& spec) { spec.mutable_problem()->set_probes(-1); }, kInvalid, "BAD_SPEC", {"-1"}},
    {"CuSeqlensThatDecrease",
     [](auto& spec) {
       Pack(spec, {0, 9, 5, 16});
     },
     kInvalid,
     "BAD_SPEC",
     {"entry 1 is 9", "entry 2 is 5"}},
    {"CuSeqlensThatEndEarly",
     [](auto& spec) {
       Pack(spec, {0, 9});
     },
     kInvalid,
     "BAD_SPEC",
     {"ends with 9", "16"}},
    {"CuSeqlensThatBeginLate",
     [](auto& spec) {
       Pack(spec, {3, 16});
     },
     kInvalid,
     "BAD_SPEC",
     {"[0] is 3"}},
    {"CuSeqlensMissing", [](auto& spec) { Pack(spec, {}); }, kInvalid, "BAD_SPEC", {"cu_seqlens_q is missing"}},
    {"TooManySequences",
     [](auto& spec) { Pack(spec, std::vector<int64_t>(70001, 0)); },
     kFailed,
     "TOO_LARGE",
     {"70000", "65536"}},
    {"TooManyHeads",
     [](auto& spec) {
       SetShapes(spec, {1 << 11, 1 << 10, 0, 1});
     },
     kFailed,
     "TOO_LARGE",
     {"batch of 2048 with 1024 heads", "1048576"}},
    {"InputMissing", [](auto& spec) { spec.mutable_inputs()->RemoveLast(); }, kInvalid, "BAD_SPEC", {"lacks input v"}},
    {"InputTwice",
     [](auto& spec) { spec.mutable_inputs(2)->mutable_tensor()->set_name(v1::TENSOR_NAME_K); },
     kInvalid,
     "BAD_SPEC",
     {"k is given twice"}},
    {"InputOfAnotherOperation",
     [](auto& spec) { spec.mutable_inputs(2)->mutable_tensor()->set_name(v1::TENSOR_NAME_UV); },
     kInvalid,
     "BAD_SPEC",
     {"no input uv"}},
    {"TooManyInputs",
     [](auto& spec) {
       for (int i = 0; i < 1000; ++i) *spec.add_inputs() = spec.inputs(0);
     },
     kInvalid,
     "BAD_SPEC",
     {"1003"}},
    {"CotangentOfLse",
     [](auto& spec) { spec.mutable_inputs(2)->mutable_tensor()->set_name(v1::TENSOR_NAME_DLSE); },
     kUnimplemented,
     "UNSUPPORTED_PROBLEM",
     {"dlse"}},
    {"NoSource", [](auto& spec) { spec.mutable_inputs(0)->clear_source(); }, kInvalid, "BAD_SPEC", {"no source"}},
    {"InputByUnknownHandle",
     [](auto& spec) { spec.mutable_inputs(0)->set_handle("h"); },
     grpc::StatusCode::NOT_FOUND,
     "HANDLE",
     {"send the tensor again"}},
    {"EmptyHandle", [](auto& spec) { spec.mutable_inputs(0)->set_handle(""); }, kInvalid, "BAD_SPEC", {"empty handle"}},
    {"NoDestination",
     [](auto& spec) { spec.add_outputs()->set_name(v1::TENSOR_NAME_O); },
     kInvalid,
     "BAD_SPEC",
     {"no destination"}},
    {"OutputOfAnotherOperation",
     [](auto& spec) {
       spec.add_outputs()->set_name(v1::TENSOR_NAME_DQ);
       spec.mutable_outputs(0)->mutable_inline_();
     },
     kInvalid,
     "BAD_SPEC",
     {"no output dq"}},
    {"OutputTwice",
     [](auto& spec) {
       for (int i = 0; i < 2; ++i) {
         spec.add_outputs()->set_name(v1::TENSOR_NAME_O);
         spec.mutable_outputs(i)->mutable_inline_();
       }
     },
     kInvalid,
     "BAD_SPEC",
     {"o is asked for twice"}},
    {"RequestIdTooLong",
     [](auto& spec) { spec.set_request_id(std::string(129, 'x')); },
     kInvalid,
     "BAD_SPEC",
     {"129", "128"}},
    {"RequestIdNotPrintable", [](auto& spec) { spec.set_request_id("a\nb"); }, kInvalid, "BAD_SPEC", {"byte 10 at 1"}},
    {"WhatTheDeviceDoesNotServe",
     [](auto& spec) {
       for (auto& input : *spec.mutable_inputs()) input.mutable_tensor()->set_dtype(v1::DATA_TYPE_FP64);
     },
     kUnimplemented,
     "UNSUPPORTED_PROBLEM",
     {"fp64", "fp32"}},
    {"TooLarge",
     [](auto& spec) {
       SetShapes(spec, {1, 2, 1 << 20, 8});
     },
     kFailed,
     "TOO_LARGE",
     {"201326592", "16777216"}},
};

void ExpectError(const grpc::Status& status, grpc::StatusCode code, const std::string& reason,
                 const std::vector<std::string>& named) {
  const WireError error = Decode(status);
  EXPECT_EQ(error.code, code) << error.text;
  EXPECT_EQ(error.reason, reason) << error.text;
  EXPECT_EQ(error.domain, reason.empty() ? "" : "flashbob");
  EXPECT_FALSE(error.retry_seconds.has_value()) << "not worth a retry as it is";
  for (const std::string& text : named) EXPECT_NE(error.text.find(text), std::string::npos) << error.text;
}

class BadSpecTest : public testing::TestWithParam<BadSpec> {};

TEST_P(BadSpecTest, IsRefusedOnTheSpecWithTheNumbersAndLeavesNothing) {
  const BadSpec& bad = GetParam();
  TestServer server;
  const auto stub = server.Connect();
  v1::ComputeSpec spec = ForwardSpec(2, 16, 8);
  bad.spoil(spec);
  ComputeStream stream(*stub);
  stream.Send(spec);  // and no more: the answer must not wait for it
  EXPECT_FALSE(stream.Receive().has_value()) << "accepted";
  ExpectError(stream.Finish(), bad.code, bad.reason, bad.named);
  EXPECT_EQ(server.engine().launches(), 0);
  EXPECT_TRUE(server.CleanAndServing());
}

INSTANTIATE_TEST_SUITE_P(All, BadSpecTest, testing::ValuesIn(kBadSpecs),
                         [](const auto& info) { return std::string(info.param.name); });

// Streams that begin with the good spec of a FORWARD of [1, 2, 16, 8]: three inputs of 1024 bytes.
struct BadStream {
  const char* name;
  std::function<void(ComputeStream&)> send;
  grpc::StatusCode code;
  const char* reason;
  std::vector<std::string> named;
};

void PrintTo(const BadStream& bad, std::ostream* out) { *out << bad.name; }

const BadStream kBadStreams[] = {
    {"ShortInTotal",
     [](auto& stream) {
       stream.Send(0, 0, std::string(1024, 'a'));
       stream.Send(1, 0, std::string(1000, 'a'));
       stream.CloseSending();
     },
     kInvalid,
     "BAD_CHUNK",
     {"1000 of the 1024 bytes of k", "2024 of 3072"}},
    {"NothingAtAll", [](auto& stream) { stream.CloseSending(); }, kInvalid, "BAD_CHUNK", {"0 of the 1024 bytes of q"}},
    {"ChunkPastTheEnd",
     [](auto& stream) {
       stream.Send(0, 0, std::string(1000, 'a'));
       stream.Send(0, 1000, std::string(25, 'a'));
     },
     kInvalid,
     "BAD_CHUNK",
     {"q of 25 bytes at 1000", "1024"}},
    {"MoreAfterTheEnd",
     [](auto& stream) {
       for (uint32_t t = 0; t < 3; ++t) stream.Send(t, 0, std::string(1024, 'a'));
       stream.Send(2, 1024, "a");
     },
     kInvalid,
     "BAD_CHUNK",
     {"v of 1 bytes at 1024"}},
    {"Gap",
     [](auto& stream) {
       stream.Send(1, 0, std::string(100, 'a'));
       stream.Send(1, 200, std::string(100, 'a'));
     },
     kInvalid,
     "BAD_CHUNK",
     {"k begins at byte 200", "100 bytes"}},
    {"Overlap",
     [](auto& stream) {
       stream.Send(1, 0, std::string(100, 'a'));
       stream.Send(1, 50, std::string(100, 'a'));
     },
     kInvalid,
     "BAD_CHUNK",
     {"byte 50", "100 bytes"}},
    {"NegativeOffset",
     [](auto& stream) { stream.Send(0, -8, std::string(8, 'a')); },
     kInvalid,
     "BAD_CHUNK",
     {"byte -8"}},
    {"LargestOffset",
     [](auto& stream) { stream.Send(0, std::numeric_limits<int64_t>::max(), std::string(8, 'a')); },
     kInvalid,
     "BAD_CHUNK",
     {"9223372036854775807"}},
    {"ChunkOfNoInput", [](auto& stream) { stream.Send(3, 0, "a"); }, kInvalid, "BAD_CHUNK", {"tensor 3", "3 inputs"}},
    {"EmptyChunk", [](auto& stream) { stream.Send(0, 0, ""); }, kInvalid, "BAD_CHUNK", {"q at byte 0 is empty"}},
    {"ChunkOverTheLimit",
     [](auto& stream) { stream.Send(0, 0, std::string((1 << 20) + 1, 'a')); },
     kInvalid,
     "BAD_CHUNK",
     {"1048577", "1048576"}},
    {"MessageOverTheLimit",
     [](auto& stream) { stream.Send(0, 0, std::string(20 << 20, 'a')); },
     grpc::StatusCode::RESOURCE_EXHAUSTED,
     "",  // gRPC's own answer
     {"20971", "2162688"}},
    {"SpecAfterASpec",
     [](auto& stream) {
       stream.Send(0, 0, std::string(100, 'a'));
       stream.Send(ForwardSpec(2, 16, 8));
     },
     kInvalid,
     "BAD_SPEC",
     {"second spec", "100 of 3072"}},
    {"SpecAfterAllBytes",
     [](auto& stream) {
       stream.SendInputs(ForwardSpec(2, 16, 8));
       stream.Send(ForwardSpec(2, 16, 8));
     },
     kInvalid,
     "BAD_SPEC",
     {"second spec", "3072 of 3072"}},
    {"EmptyMessage", [](auto& stream) { stream.SendRaw({}); }, kInvalid, "BAD_SPEC", {"neither spec nor chunk"}},
};

class BadStreamTest : public testing::TestWithParam<BadStream> {};

TEST_P(BadStreamTest, EndsWithTheNumbersAndLeavesNothing) {
  const BadStream& bad = GetParam();
  TestServer server;
  server.engine().Hold();  // a stream that is wrong after its last byte must not win the race
  const auto stub = server.Connect();
  ComputeStream stream(*stub);
  stream.Send(ForwardSpec(2, 16, 8));
  ASSERT_TRUE(stream.Receive().has_value());
  EXPECT_GT(server.server().HostMemory().reserved_bytes, 0);
  bad.send(stream);
  EXPECT_FALSE(stream.Receive().has_value());
  ExpectError(stream.Finish(), bad.code, bad.reason, bad.named);
  server.engine().LetGo();
  EXPECT_TRUE(server.CleanAndServing());
}

INSTANTIATE_TEST_SUITE_P(All, BadStreamTest, testing::ValuesIn(kBadStreams),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(BadInputTest, ChunkBeforeTheSpecIsRefused) {
  TestServer server;
  const auto stub = server.Connect();
  ComputeStream stream(*stub);
  stream.Send(0, 0, "a");
  ExpectError(stream.Finish(), kInvalid, "BAD_SPEC", {"chunk before the spec"});
  EXPECT_TRUE(server.CleanAndServing());
}

TEST(BadInputTest, StreamWithoutASpecIsRefused) {
  TestServer server;
  const auto stub = server.Connect();
  ComputeStream stream(*stub);
  stream.CloseSending();
  ExpectError(stream.Finish(), kInvalid, "BAD_SPEC", {"ended before a spec"});
  EXPECT_TRUE(server.CleanAndServing());
}

ServerOptions Impatient() {
  ServerOptions options = TestServer::DefaultOptions();
  options.idle_upload_seconds = 0.3;
  return options;
}

TEST(BadInputTest, ClientThatNeverSendsASpecIsCut) {
  TestServer server({}, Impatient());
  const auto stub = server.Connect();
  ComputeStream stream(*stub);
  ExpectError(stream.Finish(), grpc::StatusCode::DEADLINE_EXCEEDED, "DEADLINE", {"no spec", "0.3 s"});
  EXPECT_TRUE(server.CleanAndServing());
}

TEST(BadInputTest, ClientThatStopsMidUploadIsCutAndItsMemoryFreed) {
  TestServer server({}, Impatient());
  const auto stub = server.Connect();
  ComputeStream stream(*stub);
  stream.Send(ForwardSpec(2, 16, 8));
  stream.Send(0, 0, std::string(100, 'a'));
  ExpectError(stream.Finish(), grpc::StatusCode::DEADLINE_EXCEEDED, "DEADLINE", {"100 of 3072", "0.3 s"});
  EXPECT_TRUE(server.CleanAndServing());
}

TEST(BadInputTest, ClientThatDoesNotTakeItsResultIsCutAndItsMemoryFreed) {
  TestServer server({}, Impatient());
  const auto stub = v1::AttentionService::NewStub(ConnectTo(server.server().port(), /*small_window=*/true));
  ComputeStream stream(*stub);
  v1::ComputeSpec spec = ForwardSpec(1, 1, 1);
  SetShape(spec, 0, {1, 1, 8000, 1});
  SetShape(spec, 2, {1, 1, 1, 256});  // o of 8 MB
  stream.Send(spec);
  ASSERT_TRUE(stream.SendInputs(spec));
  stream.CloseSending();
  ASSERT_TRUE(server.server().calls().WaitUntilEmpty(std::chrono::seconds(20)));
  EXPECT_TRUE(server.CleanAndServing());
  EXPECT_FALSE(stream.Finish().ok());
}

TEST(BadInputTest, ClientThatIsWaitingForTheDeviceIsNotIdle) {
  TestServer server({}, Impatient());
  server.engine().Hold();
  const auto stub = server.Connect();
  const v1::ComputeSpec spec = ForwardSpec(2, 16, 8);
  ComputeStream patient(*stub);
  patient.Send(spec);
  ASSERT_TRUE(patient.SendInputs(spec));
  patient.CloseSending();
  server.engine().WaitForLaunches(1);
  // Idle calls are cut while it waits, so idleness was looked for.
  ComputeStream idle(*stub);
  EXPECT_EQ(idle.Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  server.engine().LetGo();
  EXPECT_TRUE(ReceiveAll(patient).status.ok());
}

TEST(BadInputTest, ClientThatDiesMidUploadFreesAllItHeld) {
  TestServer server;
  {
    auto stub = server.Connect();
    ComputeStream stream(*stub);
    const v1::ComputeSpec spec = ForwardSpec(2, 1000, 64);
    stream.Send(spec);
    ASSERT_TRUE(stream.Receive().has_value());
    stream.Send(0, 0, std::string(100, 'a'));
    EXPECT_GT(server.server().HostMemory().reserved_bytes, 0);
  }  // cancelled, and its connection closed
  EXPECT_TRUE(server.CleanAndServing());
}

TEST(BadInputTest, MetadataOverTheLimitIsRefused) {
  TestServer server;
  const auto stub = server.Connect();
  grpc::ClientContext context;
  context.AddMetadata("x", std::string(2 * kMaxMetadataBytes, 'x'));
  v1::GetServerInfoResponse response;
  const grpc::Status status = stub->GetServerInfo(&context, {}, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
  EXPECT_TRUE(server.CleanAndServing());
}

TEST(BadInputTest, ErrorsAreCountedByCodeAndReason) {
  TestServer server;
  const auto stub = server.Connect();
  ComputeStream stream(*stub);
  stream.CloseSending();
  EXPECT_FALSE(stream.Finish().ok());
  ASSERT_TRUE(server.CleanAndServing());
  double invalid = -1;
  double bad_spec = -1;
  for (const prometheus::MetricFamily& family : server.server().metrics().Collect()) {
    for (const prometheus::ClientMetric& metric : family.metric) {
      const auto has = [&](const std::string& value) {
        return std::any_of(metric.label.begin(), metric.label.end(),
                           [&](const auto& label) { return label.value == value; });
      };
      if (family.name == "flashbob_requests_total" && has("none") && has("INVALID_ARGUMENT")) {
        invalid = metric.counter.value;
      }
      if (family.name == "flashbob_errors_total" && has("BAD_SPEC")) bad_spec = metric.counter.value;
    }
  }
  EXPECT_EQ(invalid, 1);
  EXPECT_EQ(bad_spec, 1);
}

}  // namespace
}  // namespace flashbob::server
