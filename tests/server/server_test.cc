// The server in process: whole requests, from spec to chunks.
#include "server/server.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <set>
#include <thread>
#include <vector>

#include "server/service/spec.h"
#include "tests/server/testing/step_clock.h"
#include "tests/server/testing/test_server.h"

namespace flashbob::server {
namespace {

// What the engine must make of the inputs that ComputeStream::SendInputs sends.
std::vector<std::string> ExpectedOutputs(const v1::ComputeSpec& spec) {
  const ParsedSpec parsed = *ParseSpec(spec);
  std::vector<std::vector<char>> inputs;
  TensorPointers pointers;
  for (size_t t = 0; t < parsed.inputs.size(); ++t) {
    std::vector<char>& bytes = inputs.emplace_back();
    bytes.resize(static_cast<size_t>(BytesOf(spec.inputs(static_cast<int>(t)))));
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = ComputeStream::PatternByte(t, static_cast<int64_t>(i));
    pointers.SetInput(parsed.inputs[t], bytes.data());
  }
  std::vector<std::string> outputs;
  for (TensorName name : parsed.outputs) {
    const std::vector<std::byte> pattern = PatternOf(parsed.computation, pointers, name);
    outputs.emplace_back(reinterpret_cast<const char*>(pattern.data()), pattern.size());
  }
  return outputs;
}

ServerOptions Options() { return TestServer::DefaultOptions(); }

TEST(ServerTest, ComputesFromSpecToChunks) {
  TestServer server({.slices = 3, .workspace_bytes = 1000});
  const auto stub = server.Connect();
  v1::ComputeSpec spec = ForwardSpec(3, 33, 17);
  spec.set_request_id("my request");
  const Computed computed = Compute(*stub, spec, 1000);
  ASSERT_TRUE(computed.status.ok()) << computed.status.error_message();
  EXPECT_EQ(computed.outputs, ExpectedOutputs(spec));

  const double flops = ParseSpec(spec)->computation.flops();
  ASSERT_TRUE(computed.accepted.has_value());
  EXPECT_EQ(computed.accepted->request_id(), "my request");
  EXPECT_EQ(computed.accepted->estimated_flops(), flops);
  EXPECT_EQ(computed.accepted->queue_position(), 0);

  ASSERT_TRUE(computed.result.has_value());
  EXPECT_EQ(computed.result->device(), "stepped");
  ASSERT_EQ(computed.result->tensors_size(), 2);
  EXPECT_EQ(computed.result->tensors(0).tensor().name(), v1::TENSOR_NAME_O);
  EXPECT_EQ(computed.result->tensors(0).tensor().dtype(), v1::DATA_TYPE_FP32);
  EXPECT_EQ(std::vector<int64_t>(computed.result->tensors(0).tensor().shape().begin(),
                                 computed.result->tensors(0).tensor().shape().end()),
            (std::vector<int64_t>{1, 3, 33, 17}));
  EXPECT_EQ(computed.result->tensors(1).tensor().name(), v1::TENSOR_NAME_LSE);
  EXPECT_TRUE(computed.result->timings().has_compute());
  EXPECT_TRUE(server.CleanAndServing());
}

TEST(ServerTest, OutputsComeInTheOrderAskedForAndNoOthers) {
  TestServer server;
  const auto stub = server.Connect();
  v1::ComputeSpec spec = ForwardSpec(2, 8, 8);
  spec.set_operation(v1::OPERATION_BACKWARD);
  *spec.add_inputs() = spec.inputs(0);
  spec.mutable_inputs(3)->mutable_tensor()->set_name(v1::TENSOR_NAME_DO);
  for (v1::TensorName name : {v1::TENSOR_NAME_DV, v1::TENSOR_NAME_DQ}) {
    spec.add_outputs()->set_name(name);
    spec.mutable_outputs(spec.outputs_size() - 1)->mutable_inline_();
  }
  const Computed computed = Compute(*stub, spec);
  ASSERT_TRUE(computed.status.ok()) << computed.status.error_message();
  ASSERT_EQ(computed.result->tensors_size(), 2);
  EXPECT_EQ(computed.result->tensors(0).tensor().name(), v1::TENSOR_NAME_DV);
  EXPECT_EQ(computed.result->tensors(1).tensor().name(), v1::TENSOR_NAME_DQ);
  EXPECT_EQ(computed.outputs, ExpectedOutputs(spec));
}

TEST(ServerTest, TensorsMayInterleaveInAnyOrder) {
  TestServer server;
  const auto stub = server.Connect();
  const v1::ComputeSpec spec = ForwardSpec(1, 4, 4);
  ComputeStream stream(*stub);
  stream.Send(spec);
  for (int64_t offset = 0; offset < 64; offset += 32) {
    for (uint32_t t : {2u, 0u, 1u}) {
      std::string data;
      for (int64_t i = 0; i < 32; ++i) data += ComputeStream::PatternByte(t, offset + i);
      stream.Send(t, offset, data);
    }
  }
  stream.CloseSending();
  const Computed computed = ReceiveAll(stream);
  ASSERT_TRUE(computed.status.ok()) << computed.status.error_message();
  EXPECT_EQ(computed.outputs, ExpectedOutputs(spec));
}

TEST(ServerTest, NoMessageHoldsAWholeLargeTensor) {
  ServerOptions options = Options();
  options.max_chunk_bytes = 4 << 20;
  TestServer server({}, options);
  const auto stub = server.Connect();
  const v1::ComputeSpec spec = ForwardSpec(1, 8192, 64);  // tensors of 2 MiB
  const Computed computed = Compute(*stub, spec, 2 << 20);
  ASSERT_TRUE(computed.status.ok()) << computed.status.error_message();
  EXPECT_EQ(computed.outputs, ExpectedOutputs(spec));
  EXPECT_EQ(computed.largest_chunk_bytes, 1 << 20);
}

TEST(ServerTest, EmptyTensorsNeedNoChunks) {
  TestServer server;
  const auto stub = server.Connect();
  const v1::ComputeSpec spec = ForwardSpec(2, 0, 8);
  ComputeStream stream(*stub);
  stream.Send(spec);  // the sending side stays open: nothing is missing
  const Computed computed = ReceiveAll(stream);
  ASSERT_TRUE(computed.status.ok()) << computed.status.error_message();
  EXPECT_EQ(computed.outputs, (std::vector<std::string>{"", ""}));
}

TEST(ServerTest, RequestWithoutAnIdGetsOne) {
  TestServer server;
  const auto stub = server.Connect();
  const std::string first = Compute(*stub, ForwardSpec(1, 4, 4)).accepted->request_id();
  const std::string second = Compute(*stub, ForwardSpec(1, 4, 4)).accepted->request_id();
  EXPECT_FALSE(first.empty());
  EXPECT_NE(first, second);
  // A call is logged once gRPC is done with it, which may be after its client is.
  EXPECT_TRUE(server.server().calls().WaitUntilEmpty(std::chrono::seconds(10)));
  EXPECT_NE(server.log().find(first), std::string::npos) << server.log();
}

TEST(ServerTest, ProgressComesAtMostFourTimesASecond) {
  StepClock clock;
  TestServer server({.slices = 20}, Options(), clock);
  server.engine().Hold();
  const auto stub = server.Connect();
  const v1::ComputeSpec spec = ForwardSpec(1, 16, 8);
  ComputeStream stream(*stub);
  stream.Send(spec);
  ASSERT_TRUE(stream.SendInputs(spec));
  ASSERT_TRUE(stream.Receive()->has_accepted());
  // The device needs 100 ms a slice: of three slices, one brings progress.
  server.engine().OnSlice([&] { clock.Step(std::chrono::milliseconds(100)); });
  const double total = ParseSpec(spec)->computation.flops();
  for (int slices = 3; slices < 20; slices += 3) {
    server.engine().Step(3);
    const v1::ComputeProgress progress = stream.Receive()->progress();
    EXPECT_DOUBLE_EQ(progress.done_flops(), total * slices / 20);
    EXPECT_EQ(progress.total_flops(), total);
  }
  server.engine().LetGo();
  EXPECT_TRUE(stream.Receive()->has_result());
}

TEST(ServerTest, RequestBehindOthersLearnsItsPositionAndWait) {
  const double flops = ParseSpec(ForwardSpec(1, 64, 8))->computation.flops();
  TestServer server({.flops_per_second = flops / 10});
  server.engine().Hold();
  const auto stub = server.Connect();
  const v1::ComputeSpec spec = ForwardSpec(1, 64, 8);
  ComputeStream first(*stub);
  first.Send(spec);
  first.SendInputs(spec);
  server.engine().WaitForLaunches(1);
  ComputeStream second(*stub);
  second.Send(spec);
  const v1::ComputeAccepted accepted = second.Receive()->accepted();
  EXPECT_EQ(accepted.queue_position(), 1);
  EXPECT_EQ(accepted.estimated_wait().seconds(), 10);
}

TEST(ServerTest, DeadlineThatCannotBeMetIsRefusedLongBeforeItPasses) {
  TestServer server({.flops_per_second = 1});
  const auto stub = server.Connect();
  ComputeStream stream(*stub, std::chrono::hours(1));
  stream.Send(ForwardSpec(1, 64, 8));
  const WireError error = Decode(stream.Finish());
  EXPECT_EQ(error.code, grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(error.reason, "DEADLINE");
  EXPECT_TRUE(server.CleanAndServing());
}

TEST(ServerTest, DeadlineThatPassesWhileItRunsStopsIt) {
  TestServer server({.slices = 1000});
  server.engine().Hold();
  const auto stub = server.Connect();
  const v1::ComputeSpec spec = ForwardSpec(1, 64, 8);
  ComputeStream stream(*stub, std::chrono::milliseconds(300));
  stream.Send(spec);
  stream.SendInputs(spec);
  server.engine().WaitForLaunches(1);
  EXPECT_EQ(stream.Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  ASSERT_TRUE(server.server().calls().WaitUntilEmpty(std::chrono::seconds(10)));
  server.engine().LetGo();
  EXPECT_TRUE(server.CleanAndServing());
  EXPECT_EQ(server.engine().launches(), 1 + 1000) << "one slice of it, and a whole request after it";
  EXPECT_NE(server.log().find("code=DEADLINE_EXCEEDED"), std::string::npos) << server.log();
}

TEST(ServerTest, CancellationFreesMemoryWithinATenthOfASecond) {
  TestServer server({.slices = 100000});
  server.engine().OnSlice([] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); });  // what a slice takes
  const auto stub = server.Connect();
  const v1::ComputeSpec spec = ForwardSpec(1, 64, 8);
  Duration best = std::chrono::hours(1);
  for (int attempt = 0; attempt < 5 && best > std::chrono::milliseconds(100);
       ++attempt) {  // others use the machine too
    const int64_t launches = server.engine().launches();
    ComputeStream stream(*stub);
    stream.Send(spec);
    stream.SendInputs(spec);
    server.engine().WaitForLaunches(launches + 2);
    const auto began = std::chrono::steady_clock::now();
    stream.Cancel();
    while (server.server().HostMemory().reserved_bytes != 0) std::this_thread::yield();
    best = std::min<Duration>(best, std::chrono::steady_clock::now() - began);
  }
  EXPECT_LE(ToSeconds(best), 0.1);
}

TEST(ServerTest, FullQueueIsRefusedWithARetryDelay) {
  TestServer server;
  server.engine().Hold();
  const auto stub = server.Connect();
  std::vector<std::unique_ptr<ComputeStream>> waiting;
  for (int i = 0; i < 8; ++i) {
    waiting.push_back(std::make_unique<ComputeStream>(*stub));
    waiting.back()->Send(ForwardSpec(1, 4, 4));
    ASSERT_TRUE(waiting.back()->Receive().has_value());
  }
  ComputeStream refused(*stub);
  refused.Send(ForwardSpec(1, 4, 4));
  const WireError error = Decode(refused.Finish());
  EXPECT_EQ(error.code, grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(error.reason, "QUEUE_FULL");
  EXPECT_GT(error.retry_seconds.value_or(0), 0);
  EXPECT_NE(error.text.find("8 requests"), std::string::npos) << error.text;
  waiting.clear();
  server.engine().LetGo();
  EXPECT_TRUE(server.CleanAndServing());
}

TEST(ServerTest, ClientThatOffersMoreThanThePoolHoldsIsNotRead) {
  TestServer server;  // 16 MiB
  server.engine().Hold();
  const auto stub = server.Connect();
  const v1::ComputeSpec spec = ForwardSpec(1, 12000, 64);  // inputs of 9.2 MB, outputs of 3.1
  ComputeStream holder(*stub);
  holder.Send(spec);
  ASSERT_TRUE(holder.SendInputs(spec));
  server.engine().WaitForLaunches(1);

  const auto other_stub = server.Connect();
  ComputeStream waiting(*other_stub);
  std::promise<void> sent;
  std::thread sender([&] {
    waiting.Send(spec);
    waiting.SendInputs(spec);
    sent.set_value();
  });
  std::future<void> all_sent = sent.get_future();
  // Loopback takes 9 MB in some 10 ms. The assertion cannot fail for being checked too soon.
  EXPECT_EQ(all_sent.wait_for(std::chrono::milliseconds(500)), std::future_status::timeout)
      << "flow control did not hold the client back";
  EXPECT_LE(server.server().HostMemory().reserved_bytes, 16 << 20);
  server.engine().LetGo();
  EXPECT_TRUE(ReceiveAll(holder).status.ok());
  all_sent.wait();
  sender.join();
  const Computed computed = ReceiveAll(waiting);
  EXPECT_TRUE(computed.status.ok()) << computed.status.error_message();
  EXPECT_EQ(computed.outputs, ExpectedOutputs(spec));
  EXPECT_LE(server.server().HostMemory().high_water_bytes, 16 << 20);
  EXPECT_TRUE(server.CleanAndServing());
}

TEST(ServerTest, ManyClientsShareASmallPool) {
  TestServer server({.slices = 2, .workspace_bytes = 100000});
  std::vector<std::thread> clients;
  const v1::ComputeSpec spec = ForwardSpec(1, 8000, 64);  // 8 MB of 16
  const std::vector<std::string> expected = ExpectedOutputs(spec);
  for (int i = 0; i < 6; ++i) {
    clients.emplace_back([&] {
      const Computed computed = Compute(*server.Connect(), spec);
      EXPECT_TRUE(computed.status.ok()) << computed.status.error_message();
      EXPECT_EQ(computed.outputs, expected);
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_LE(server.server().HostMemory().high_water_bytes, 16 << 20);
  EXPECT_TRUE(server.CleanAndServing());
}

TEST(ServerTest, InfoStatesDevicesLimitsAndWhatIsServed) {
  TestServer server;
  const auto stub = server.Connect();
  grpc::ClientContext context;
  v1::GetServerInfoResponse info;
  ASSERT_TRUE(stub->GetServerInfo(&context, {}, &info).ok());
  EXPECT_FALSE(info.version().empty());
  ASSERT_EQ(info.devices_size(), 1);
  EXPECT_EQ(info.devices(0).name(), "stepped");
  EXPECT_EQ(info.devices(0).memory().limit_bytes(), 16 << 20);
  EXPECT_EQ(info.host_memory().limit_bytes(), 16 << 20);
  EXPECT_EQ(info.limits().max_chunk_bytes(), 1 << 20);
  EXPECT_GT(info.limits().max_message_bytes(), info.limits().max_chunk_bytes());
  EXPECT_EQ(info.limits().max_request_bytes(), 16 << 20);
  EXPECT_EQ(info.limits().max_queued_requests(), 8);
  EXPECT_EQ(info.limits().max_metadata_bytes(), kMaxMetadataBytes);
  EXPECT_EQ(info.limits().idle_upload_seconds(), 30);
  EXPECT_EQ(info.limits().max_lease_seconds(), 24 * 3600);
  EXPECT_EQ(info.limits().max_heads(), kMaxHeads);
  EXPECT_EQ(info.limits().max_sequences(), kMaxSequences);
  EXPECT_EQ(info.tenant().name(), "default");
  ASSERT_EQ(info.capabilities_size(), 1);
  std::set<int> dtypes;
  for (const v1::Capability& capability : info.capabilities()) {
    EXPECT_EQ(capability.device(), "stepped");
    EXPECT_EQ(capability.operations_size(), 4);
    EXPECT_EQ(capability.layouts_size(), 3);
    EXPECT_EQ(capability.max_head_dim(), 256);
    EXPECT_EQ(capability.max_value_dim(), 256);
    dtypes.insert(capability.dtypes().begin(), capability.dtypes().end());
  }
  EXPECT_EQ(dtypes, (std::set<int>{v1::DATA_TYPE_BF16, v1::DATA_TYPE_FP16, v1::DATA_TYPE_FP32}))
      << "this engine does not serve fp64";
}

TEST(ServerTest, InfoShowsWhatIsInUse) {
  TestServer server;
  const auto stub = server.Connect();
  ComputeStream stream(*stub);
  stream.Send(ForwardSpec(1, 1000, 64));
  ASSERT_TRUE(stream.Receive().has_value());
  grpc::ClientContext context;
  v1::GetServerInfoResponse info;
  ASSERT_TRUE(stub->GetServerInfo(&context, {}, &info).ok());
  EXPECT_GE(info.host_memory().reserved_bytes(), 4 * 1000 * 64 * 4);
  EXPECT_EQ(info.tenant().used_bytes(), info.host_memory().reserved_bytes());
  EXPECT_EQ(info.tenant().in_flight(), 1);
}

TEST(ServerTest, LogsOneLineARequest) {
  TestServer server;
  v1::ComputeSpec spec = ForwardSpec(2, 8, 8);
  spec.set_request_id("seen in the log");
  ASSERT_TRUE(Compute(*server.Connect(), spec).status.ok());
  ASSERT_TRUE(server.server().calls().WaitUntilEmpty(std::chrono::seconds(10)));
  const std::string log = server.log();
  for (const char* field : {"call method=Compute", "peer=ipv4:127.0.0.1:", "request_id=\"seen in the log\"",
                            "operation=forward", "problem=\"BHND B1 H2/2 N8x8 D8/8 fp32\"", "received_bytes=1536",
                            "sent_bytes=576", "code=OK", "device_seconds="}) {
    EXPECT_NE(log.find(field), std::string::npos) << field << " in " << log;
  }
}

TEST(ServerTest, LogsTheTraceOfARequestWhereItsHeaderIsGood) {
  TestServer server;
  const auto stub = server.Connect();
  for (const char* header : {"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "made up\" trace_id=1"}) {
    grpc::ClientContext context;
    context.AddMetadata("traceparent", header);
    v1::GetServerInfoResponse info;
    ASSERT_TRUE(stub->GetServerInfo(&context, {}, &info).ok());
  }
  ASSERT_TRUE(server.server().calls().WaitUntilEmpty(std::chrono::seconds(10)));
  const std::string log = server.log();
  EXPECT_NE(log.find("trace_id=4bf92f3577b34da6a3ce929d0e0e4736 parent_id=00f067aa0ba902b7"), std::string::npos) << log;
  EXPECT_EQ(log.find("trace_id=1"), std::string::npos) << log;
}

TEST(ServerTest, SaysWhatItsCallsWaitFor) {
  SteppedEngine::Options engine;
  TestServer server(engine);
  const auto stub = server.Connect();
  v1::ComputeSpec spec = ForwardSpec(1, 8, 8);
  spec.set_request_id("uploading");
  ComputeStream uploading(*stub);
  uploading.Send(spec);
  ASSERT_TRUE(uploading.Receive().has_value());
  uploading.Send(0, 0, std::string(100, 'x'));
  CallView view;
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  do {
    const std::vector<CallView> views = server.server().calls().View(std::chrono::steady_clock::now(), 10);
    ASSERT_EQ(views.size(), 1u);
    view = views[0];
  } while (view.waits_for.find("100 of 768 input bytes") == std::string::npos &&
           std::chrono::steady_clock::now() < until);
  EXPECT_EQ(view.state, "receiving");
  EXPECT_EQ(view.waits_for, "the client: 100 of 768 input bytes have come");
  EXPECT_EQ(view.request_id, "uploading");
  EXPECT_EQ(view.operation, "forward");
  EXPECT_EQ(view.tenant, "default");
  uploading.Cancel();
  uploading.Finish();
  ASSERT_TRUE(server.server().calls().WaitUntilEmpty(std::chrono::seconds(10)));
  const std::vector<EndedCall> ended = server.server().calls().Ended();
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].code, "CANCELLED");
  EXPECT_EQ(ended[0].call.request_id, "uploading");
}

}  // namespace
}  // namespace flashbob::server
