// Answers that are one message: a result that holds what was said of the admission, and the outputs.
#include <gtest/gtest.h>

#include "server/service/spec.h"
#include "tests/server/testing/test_server.h"

namespace flashbob::server {
namespace {

// Outputs are 64 times the queries: `length` * 1 KiB.
v1::ComputeSpec WideSpec(int64_t length) {
  v1::ComputeSpec spec = ForwardSpec(1, 8, 4);
  spec.mutable_inputs(0)->mutable_tensor()->set_shape(2, length);
  spec.mutable_inputs(2)->mutable_tensor()->set_shape(3, 256);
  return spec;
}

// The same on tensors that lie in the store: the bytes that ComputeStream::SendInputs sends.
v1::ComputeSpec Stored(v1::AttentionService::Stub& stub, v1::ComputeSpec spec) {
  grpc::ClientContext context;
  v1::PutTensorsResponse response;
  const auto writer = stub.PutTensors(&context, &response);
  v1::PutTensorsRequest request;
  for (const v1::InputTensor& input : spec.inputs()) *request.mutable_spec()->add_tensors() = input.tensor();
  writer->Write(request);
  for (int t = 0; t < spec.inputs_size(); ++t) {
    std::string& data = *request.mutable_chunk()->mutable_data();
    request.mutable_chunk()->set_tensor_index(static_cast<uint32_t>(t));
    data.resize(static_cast<size_t>(BytesOf(spec.inputs(t))));
    for (size_t i = 0; i < data.size(); ++i) {
      data[i] = ComputeStream::PatternByte(static_cast<size_t>(t), static_cast<int64_t>(i));
    }
    writer->Write(request);
  }
  writer->WritesDone();
  const grpc::Status status = writer->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  for (int t = 0; t < response.handles_size(); ++t) spec.mutable_inputs(t)->set_handle(response.handles(t));
  spec.set_brief_answer(true);
  return spec;
}

std::vector<std::string> OutputsOf(const v1::ComputeSpec& spec) {
  TestServer server;
  return Compute(*server.Connect(), spec).outputs;
}

TEST(BriefCallTest, SmallRequestOfStoredTensorsIsOneMessageEachWay) {
  v1::ComputeSpec spec = ForwardSpec(3, 33, 17);
  spec.set_request_id("my request");
  TestServer server({.unified_memory = false});  // computed by the call's own thread
  const auto stub = server.Connect();
  ComputeStream stream(*stub);
  ASSERT_TRUE(stream.Send(Stored(*stub, spec)));
  const std::optional<v1::ComputeResponse> answer = stream.Receive();
  ASSERT_TRUE(answer.has_value());
  ASSERT_TRUE(answer->has_result()) << answer->DebugString();
  EXPECT_EQ(answer->result().accepted().request_id(), "my request");
  EXPECT_EQ(answer->result().accepted().estimated_flops(), ParseSpec(spec)->computation.flops());
  std::vector<std::string> outputs;
  for (const v1::ResultTensor& tensor : answer->result().tensors()) outputs.push_back(tensor.data());
  EXPECT_EQ(outputs, OutputsOf(spec));
  EXPECT_FALSE(stream.Receive().has_value());
  EXPECT_TRUE(stream.Finish().ok());
}

TEST(BriefCallTest, SmallInlineRequestHasOneAnswer) {
  v1::ComputeSpec spec = ForwardSpec(3, 33, 17);
  TestServer server({.unified_memory = false});
  const std::vector<std::string> expected = OutputsOf(spec);
  spec.set_brief_answer(true);
  const auto stub = server.Connect();
  bool within = false;
  // The look at idle calls may fall between the spec and the last chunk, not each time.
  for (int i = 0; i < 20 && !within; ++i) {
    const Computed computed = Compute(*stub, spec);
    ASSERT_TRUE(computed.status.ok()) << computed.status.error_message();
    EXPECT_EQ(computed.outputs, expected);
    within = computed.result->has_accepted() && computed.largest_chunk_bytes == 0;
  }
  EXPECT_TRUE(within);
}

TEST(BriefCallTest, WhoWaitsForAcceptedHasIt) {
  v1::ComputeSpec spec = ForwardSpec(3, 33, 17);
  spec.set_brief_answer(true);
  TestServer server({.unified_memory = false});
  const auto stub = server.Connect();
  ComputeStream stream(*stub);
  ASSERT_TRUE(stream.Send(spec));
  const std::optional<v1::ComputeResponse> first = stream.Receive();
  ASSERT_TRUE(first.has_value());
  EXPECT_TRUE(first->has_accepted());
  ASSERT_TRUE(stream.SendInputs(spec));
  const Computed computed = ReceiveAll(stream);
  ASSERT_TRUE(computed.status.ok()) << computed.status.error_message();
  EXPECT_FALSE(computed.result->has_accepted());
}

TEST(BriefCallTest, LookAtIdleCallsWhileItIsComputedSendsNothing) {
  const v1::ComputeSpec spec = ForwardSpec(3, 33, 17);
  TestServer server({.unified_memory = false});  // computed by the call's own thread, which sends nothing meanwhile
  const auto stub = server.Connect();
  int looks = 0;
  server.engine().OnSlice([&] {
    server.server().calls().CutIdle(std::chrono::steady_clock::now());
    ++looks;
  });
  ComputeStream stream(*stub);
  ASSERT_TRUE(stream.Send(Stored(*stub, spec)));
  const Computed computed = ReceiveAll(stream);
  ASSERT_TRUE(computed.status.ok()) << computed.status.error_message();
  EXPECT_EQ(looks, 1);
  EXPECT_TRUE(computed.result->has_accepted());
}

TEST(BriefCallTest, AcceptedComesFirstWhereTheDeviceTakesLonger) {
  const v1::ComputeSpec spec = ForwardSpec(3, 33, 17);
  TestServer server;
  const auto stub = server.Connect();
  const v1::ComputeSpec stored = Stored(*stub, spec);
  server.engine().Hold();
  ComputeStream stream(*stub);
  ASSERT_TRUE(stream.Send(stored));
  const std::optional<v1::ComputeResponse> first = stream.Receive();
  ASSERT_TRUE(first.has_value());
  EXPECT_TRUE(first->has_accepted());
  server.engine().LetGo();
  const Computed computed = ReceiveAll(stream);
  ASSERT_TRUE(computed.status.ok()) << computed.status.error_message();
  EXPECT_FALSE(computed.result->has_accepted());
  EXPECT_EQ(computed.outputs, OutputsOf(spec));
}

TEST(BriefCallTest, LargeOutputsFollowTheResultInChunks) {
  const v1::ComputeSpec spec = WideSpec(1024);  // 1 MiB
  TestServer server({.unified_memory = false});
  const auto stub = server.Connect();
  ComputeStream stream(*stub);
  ASSERT_TRUE(stream.Send(Stored(*stub, spec)));
  const Computed computed = ReceiveAll(stream);
  ASSERT_TRUE(computed.status.ok()) << computed.status.error_message();
  EXPECT_TRUE(computed.result->has_accepted());
  EXPECT_EQ(computed.result->tensors(0).data(), "");
  EXPECT_GT(computed.largest_chunk_bytes, 0);
  EXPECT_EQ(computed.outputs, OutputsOf(spec));
}

TEST(BriefCallTest, FirstOutputsComeWithinTheResultAndTheRestInChunks) {
  v1::ComputeSpec spec = WideSpec(72);  // o as large as may be, and lse
  TestServer server({.unified_memory = false});
  const std::vector<std::string> expected = OutputsOf(spec);
  spec.set_brief_answer(true);
  const Computed computed = Compute(*server.Connect(), spec);
  ASSERT_TRUE(computed.status.ok()) << computed.status.error_message();
  EXPECT_EQ(computed.result->tensors(0).data().size(), size_t{72} << 10);
  EXPECT_EQ(computed.result->tensors(1).data(), "");
  EXPECT_GT(computed.largest_chunk_bytes, 0);
  EXPECT_EQ(computed.outputs, expected);
}

// BACKWARD of two heads.
v1::ComputeSpec BackwardSpec(int64_t queries, int64_t keys, const std::vector<v1::TensorName>& outputs) {
  v1::ComputeSpec spec = ForwardSpec(2, keys, 16);
  spec.set_operation(v1::OPERATION_BACKWARD);
  spec.mutable_inputs(0)->mutable_tensor()->set_shape(2, queries);
  *spec.add_inputs() = spec.inputs(0);
  spec.mutable_inputs(3)->mutable_tensor()->set_name(v1::TENSOR_NAME_DO);
  for (v1::TensorName name : outputs) {
    v1::OutputTensor& output = *spec.add_outputs();
    output.set_name(name);
    output.mutable_inline_();
  }
  return spec;
}

std::string BytesUnder(v1::AttentionService::Stub& stub, const std::string& handle) {
  grpc::ClientContext context;
  v1::GetTensorsRequest request;
  request.add_handles(handle);
  const auto reader = stub.GetTensors(&context, request);
  std::string bytes;
  v1::GetTensorsResponse response;
  while (reader->Read(&response)) bytes += response.chunk().data();
  EXPECT_TRUE(reader->Finish().ok());
  return bytes;
}

TEST(BriefCallTest, OutputsThatAreKeptOrEmptyLeaveTheOthersWithinTheResult) {
  struct Case {
    int64_t queries;
    int64_t keys;
    std::vector<v1::TensorName> outputs;  // the first is kept
  };
  const std::vector<Case> cases = {
      {24, 40, {v1::TENSOR_NAME_DQ, v1::TENSOR_NAME_DK, v1::TENSOR_NAME_DV}},
      {0, 40, {v1::TENSOR_NAME_DV, v1::TENSOR_NAME_DQ, v1::TENSOR_NAME_DK}},
      {0, 40, {v1::TENSOR_NAME_DQ, v1::TENSOR_NAME_DK, v1::TENSOR_NAME_DV}},
      {24, 0, {v1::TENSOR_NAME_DQ, v1::TENSOR_NAME_DK, v1::TENSOR_NAME_DV}},
  };
  TestServer server({.unified_memory = false});
  const auto stub = server.Connect();
  for (const Case& c : cases) {
    v1::ComputeSpec spec = BackwardSpec(c.queries, c.keys, c.outputs);
    SCOPED_TRACE(spec.ShortDebugString());
    const std::vector<std::string> expected = OutputsOf(spec);
    spec.mutable_outputs(0)->mutable_keep();
    spec.set_brief_answer(true);
    const Computed computed = Compute(*stub, spec);
    ASSERT_TRUE(computed.status.ok()) << computed.status.error_message();
    EXPECT_TRUE(computed.accepted.has_value());
    EXPECT_EQ(computed.largest_chunk_bytes, 0);
    EXPECT_EQ(computed.outputs, (std::vector<std::string>{"", expected[1], expected[2]}));
    EXPECT_EQ(BytesUnder(*stub, computed.result->tensors(0).handle()), expected[0]);
  }
}

TEST(BriefCallTest, InputsInChunksHaveSmallOutputsWithinTheResult) {
  v1::ComputeSpec spec = ForwardSpec(1, 16, 64);
  for (int i : {1, 2}) spec.mutable_inputs(i)->mutable_tensor()->set_shape(2, 5000);
  TestServer server;
  const std::vector<std::string> expected = OutputsOf(spec);
  spec.set_brief_answer(true);
  const Computed computed = Compute(*server.Connect(), spec);
  ASSERT_TRUE(computed.status.ok()) << computed.status.error_message();
  EXPECT_EQ(computed.largest_chunk_bytes, 0);
  EXPECT_EQ(computed.outputs, expected);
  EXPECT_TRUE(server.CleanAndServing());
}

}  // namespace
}  // namespace flashbob::server
