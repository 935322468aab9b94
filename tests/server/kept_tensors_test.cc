// Tensors that stay on the server, and tenants, over the wire.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "server/service/grpc_status.h"
#include "tests/server/testing/step_clock.h"
#include "tests/server/testing/test_server.h"

namespace flashbob::server {
namespace {

using Stub = v1::AttentionService::Stub;

constexpr char kAlphaHash[] = "a336d9b1d8b8647875238537ca5087b0ea335afd2032936aecdffc3e4b13f720";
constexpr char kBetaHash[] = "863d63c0bd3a94bfca84ed2063a7355a226faff82ca50b90158bf183aa1a9e61";

v1::TensorSpec Spec(v1::TensorName name, const std::vector<int64_t>& shape) {
  v1::TensorSpec spec;
  spec.set_name(name);
  spec.set_dtype(v1::DATA_TYPE_FP32);
  for (int64_t extent : shape) spec.add_shape(extent);
  return spec;
}

void Authorize(grpc::ClientContext& context, const std::string& token) {
  if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
}

struct PutResult {
  grpc::Status status;
  std::vector<std::string> handles;
};

// Puts q, k, v of [1, 1, length, 8], each filled with a letter.
PutResult Put(Stub& stub, int64_t length, const std::string& token = "", const std::string& request_id = "",
              int64_t lease_seconds = 0) {
  grpc::ClientContext context;
  Authorize(context, token);
  v1::PutTensorsResponse response;
  auto writer = stub.PutTensors(&context, &response);
  v1::PutTensorsRequest request;
  request.mutable_spec()->set_request_id(request_id);
  request.mutable_spec()->set_lease_seconds(lease_seconds);
  for (v1::TensorName name : {v1::TENSOR_NAME_Q, v1::TENSOR_NAME_K, v1::TENSOR_NAME_V}) {
    *request.mutable_spec()->add_tensors() = Spec(name, {1, 1, length, 8});
  }
  writer->Write(request);
  constexpr int64_t kPiece = 512 << 10;
  bool taken = true;
  for (uint32_t i = 0; i < 3; ++i) {
    for (int64_t offset = 0; taken && offset < length * 32; offset += kPiece) {
      const auto size = static_cast<size_t>(std::min(kPiece, length * 32 - offset));
      request.mutable_chunk()->set_tensor_index(i);
      request.mutable_chunk()->set_byte_offset(offset);
      request.mutable_chunk()->set_data(std::string(size, static_cast<char>('a' + i)));
      taken = writer->Write(request);
    }
  }
  writer->WritesDone();
  PutResult result;
  result.status = writer->Finish();
  result.handles.assign(response.handles().begin(), response.handles().end());
  return result;
}

struct GetResult {
  grpc::Status status;
  v1::GetTensorsHeader header;
  std::vector<std::string> bytes;
};

GetResult Get(Stub& stub, const std::vector<std::string>& handles, const std::string& token = "") {
  grpc::ClientContext context;
  Authorize(context, token);
  v1::GetTensorsRequest request;
  for (const std::string& handle : handles) request.add_handles(handle);
  auto reader = stub.GetTensors(&context, request);
  GetResult result;
  v1::GetTensorsResponse response;
  while (reader->Read(&response)) {
    if (response.has_header()) {
      result.header = response.header();
      result.bytes.resize(static_cast<size_t>(result.header.tensors_size()));
    } else {
      std::string& bytes = result.bytes.at(response.chunk().tensor_index());
      EXPECT_EQ(response.chunk().byte_offset(), static_cast<int64_t>(bytes.size()));
      bytes += response.chunk().data();
    }
  }
  result.status = reader->Finish();
  return result;
}

int64_t Delete(Stub& stub, const std::vector<std::string>& handles, const std::string& token = "") {
  grpc::ClientContext context;
  Authorize(context, token);
  v1::DeleteTensorsRequest request;
  for (const std::string& handle : handles) request.add_handles(handle);
  v1::DeleteTensorsResponse response;
  EXPECT_TRUE(stub.DeleteTensors(&context, request, &response).ok());
  return response.deleted();
}

struct ComputeResult {
  grpc::Status status;
  v1::ComputeResult result;
  std::vector<std::string> bytes;  // by output
};

// FORWARD on q, k, v by handle; `keep` says whether o stays on the server.
ComputeResult ForwardByHandle(Stub& stub, const std::vector<std::string>& handles, int64_t length, bool keep,
                              const std::string& token = "", const std::string& request_id = "") {
  grpc::ClientContext context;
  Authorize(context, token);
  auto stream = stub.Compute(&context);
  v1::ComputeRequest request;
  v1::ComputeSpec& spec = *request.mutable_spec();
  spec.set_request_id(request_id);
  spec.set_operation(v1::OPERATION_FORWARD);
  spec.mutable_problem()->set_layout(v1::LAYOUT_BHND);
  const v1::TensorName names[] = {v1::TENSOR_NAME_Q, v1::TENSOR_NAME_K, v1::TENSOR_NAME_V};
  for (size_t i = 0; i < 3; ++i) {
    v1::InputTensor& input = *spec.add_inputs();
    *input.mutable_tensor() = Spec(names[i], {1, 1, length, 8});
    input.set_handle(handles[i]);
  }
  v1::OutputTensor& output = *spec.add_outputs();
  output.set_name(v1::TENSOR_NAME_O);
  if (keep) {
    output.mutable_keep();
  } else {
    output.mutable_inline_();
  }
  stream->Write(request);
  stream->WritesDone();
  ComputeResult result;
  v1::ComputeResponse response;
  while (stream->Read(&response)) {
    if (response.has_result()) {
      result.result = response.result();
      result.bytes.resize(static_cast<size_t>(result.result.tensors_size()));
    } else if (response.has_chunk()) {
      result.bytes.at(response.chunk().tensor_index()) += response.chunk().data();
    }
  }
  result.status = stream->Finish();
  return result;
}

int64_t ReceivedBytes(TestServer& server) {
  for (const prometheus::MetricFamily& family : server.server().metrics().Collect()) {
    if (family.name == "flashbob_received_bytes_total") return static_cast<int64_t>(family.metric[0].counter.value);
  }
  return -1;
}

std::string TenantsFile(const std::string& more = "") {
  const std::string path = testing::TempDir() + "/tenants_" + std::to_string(getpid()) + ".txt";
  std::ofstream(path) << "tenants { name: \"alpha\" token_sha256: \"" << kAlphaHash << "\" " << more
                      << " }\ntenants { name: \"beta\" token_sha256: \"" << kBetaHash << "\" }\n";
  return path;
}

TEST(KeptTensorsTest, WhatWasPutComesBack) {
  TestServer server;
  const auto stub = server.Connect();
  const PutResult put = Put(*stub, 50000);  // several chunks each on the way back
  ASSERT_TRUE(put.status.ok()) << put.status.error_message();
  ASSERT_EQ(put.handles.size(), 3u);
  const GetResult got = Get(*stub, {put.handles[2], put.handles[0]});
  ASSERT_TRUE(got.status.ok()) << got.status.error_message();
  EXPECT_EQ(got.header.tensors(0).name(), v1::TENSOR_NAME_V);
  EXPECT_EQ(got.header.tensors(1).shape(2), 50000);
  EXPECT_EQ(got.bytes[0], std::string(50000 * 32, 'c'));
  EXPECT_EQ(got.bytes[1], std::string(50000 * 32, 'a'));
  EXPECT_EQ(Delete(*stub, put.handles), 3);
  EXPECT_EQ(Delete(*stub, put.handles), 0);
  EXPECT_TRUE(server.CleanAndServing());
}

TEST(KeptTensorsTest, ComputeTakesHandlesAndKeepsOutputs) {
  TestServer server;
  const auto stub = server.Connect();
  const PutResult put = Put(*stub, 100);
  ASSERT_TRUE(put.status.ok()) << put.status.error_message();
  const int64_t received = ReceivedBytes(server);
  EXPECT_EQ(received, 3 * 3200);
  const ComputeResult sent = ForwardByHandle(*stub, put.handles, 100, false);
  ASSERT_TRUE(sent.status.ok()) << sent.status.error_message();
  EXPECT_EQ(sent.bytes[0].size(), 3200u);
  EXPECT_EQ(sent.result.tensors(0).handle(), "");
  const ComputeResult kept = ForwardByHandle(*stub, put.handles, 100, true);
  ASSERT_TRUE(kept.status.ok()) << kept.status.error_message();
  EXPECT_EQ(kept.bytes[0], "") << "what stays is not sent";
  const std::string handle = kept.result.tensors(0).handle();
  const GetResult got = Get(*stub, {handle});
  ASSERT_TRUE(got.status.ok());
  EXPECT_EQ(got.bytes[0], sent.bytes[0]);
  EXPECT_EQ(ReceivedBytes(server), received) << "each tensor crosses the wire once";
  Delete(*stub, put.handles);
  Delete(*stub, {handle});
  EXPECT_TRUE(server.CleanAndServing());
  EXPECT_EQ(server.server().store().GetUse().bytes, 0);
}

TEST(KeptTensorsTest, RetriedRequestStoresItsOutputOnce) {
  TestServer server;
  const auto stub = server.Connect();
  const PutResult put = Put(*stub, 100, "", "upload");
  EXPECT_EQ(Put(*stub, 100, "", "upload").handles, put.handles);
  const ComputeResult first = ForwardByHandle(*stub, put.handles, 100, true, "", "try");
  const ComputeResult second = ForwardByHandle(*stub, put.handles, 100, true, "", "try");
  EXPECT_EQ(first.result.tensors(0).handle(), second.result.tensors(0).handle());
  EXPECT_EQ(server.server().store().GetUse().tensors, 4);
}

TEST(KeptTensorsTest, HandleOfAnotherShapeIsRefusedWithBoth) {
  TestServer server;
  const auto stub = server.Connect();
  const PutResult put = Put(*stub, 100);
  const grpc::Status status = ForwardByHandle(*stub, put.handles, 99, false).status;
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_NE(status.error_message().find("[1, 1, 99, 8]"), std::string::npos) << status.error_message();
  EXPECT_NE(status.error_message().find("[1, 1, 100, 8]"), std::string::npos) << status.error_message();
}

TEST(KeptTensorsTest, HandlesOfAnotherTenantAreUnknown) {
  ServerOptions options = TestServer::DefaultOptions();
  options.tenants_file = TenantsFile();
  TestServer server({}, options);
  const auto stub = server.Connect();
  const PutResult put = Put(*stub, 100, "alpha-token");
  ASSERT_TRUE(put.status.ok()) << put.status.error_message();
  EXPECT_EQ(Get(*stub, put.handles, "beta-token").status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(ForwardByHandle(*stub, put.handles, 100, false, "beta-token").status.error_code(),
            grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(Delete(*stub, put.handles, "beta-token"), 0);
  EXPECT_TRUE(ForwardByHandle(*stub, put.handles, 100, false, "alpha-token").status.ok());
}

TEST(KeptTensorsTest, CallsWithoutARightTokenAreTurnedAway) {
  ServerOptions options = TestServer::DefaultOptions();
  options.tenants_file = TenantsFile();
  TestServer server({}, options);
  const auto stub = server.Connect();
  for (const std::string token : {"", "wrong", "alpha-toke"}) {
    EXPECT_EQ(Put(*stub, 8, token).status.error_code(), grpc::StatusCode::UNAUTHENTICATED);
    EXPECT_EQ(Get(*stub, {"h"}, token).status.error_code(), grpc::StatusCode::UNAUTHENTICATED);
    EXPECT_EQ(ForwardByHandle(*stub, {"a", "b", "c"}, 8, false, token).status.error_code(),
              grpc::StatusCode::UNAUTHENTICATED);
    grpc::ClientContext context;
    Authorize(context, token);
    v1::GetServerInfoResponse info;
    EXPECT_EQ(stub->GetServerInfo(&context, {}, &info).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  }
  EXPECT_EQ(server.server().HostMemory().high_water_bytes, 0) << "nothing was buffered";
}

TEST(KeptTensorsTest, QuotaCoversWhatIsStoredAndServerInfoShowsIt) {
  ServerOptions options = TestServer::DefaultOptions();
  options.tenants_file = TenantsFile("max_bytes: 20000");
  TestServer server({}, options);
  const auto stub = server.Connect();
  const PutResult put = Put(*stub, 100, "alpha-token");  // 3 x 3,200 bytes, in blocks of 4,096
  ASSERT_TRUE(put.status.ok()) << put.status.error_message();
  grpc::ClientContext context;
  Authorize(context, "alpha-token");
  v1::GetServerInfoResponse info;
  ASSERT_TRUE(stub->GetServerInfo(&context, {}, &info).ok());
  EXPECT_EQ(info.tenant().name(), "alpha");
  EXPECT_EQ(info.tenant().max_bytes(), 20000);
  EXPECT_EQ(info.tenant().used_bytes(), 3 * 4096);
  EXPECT_EQ(Put(*stub, 100, "alpha-token").status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(Put(*stub, 100, "beta-token").status.ok());
  Delete(*stub, put.handles, "alpha-token");
  EXPECT_TRUE(Put(*stub, 100, "alpha-token").status.ok());
}

TEST(KeptTensorsTest, StoreThatIsFullRefusesWithADelay) {
  TestServer server;  // 8 MiB for stored tensors
  const auto stub = server.Connect();
  ASSERT_TRUE(Put(*stub, 50000).status.ok());
  const grpc::Status refusal = Put(*stub, 50000).status;
  EXPECT_EQ(refusal.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(Put(*stub, 200000).status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

TEST(KeptTensorsTest, LeaseEndsOnTheServersClock) {
  StepClock clock;
  TestServer server({}, TestServer::DefaultOptions(), clock);
  const auto stub = server.Connect();
  const PutResult put = Put(*stub, 100, "", "", 5);
  clock.Step(std::chrono::seconds(4));
  EXPECT_TRUE(Get(*stub, put.handles).status.ok());
  clock.Step(std::chrono::seconds(6));
  EXPECT_EQ(Get(*stub, put.handles).status.error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST(KeptTensorsTest, UploadsThatAreCutLeaveNothingBehind) {
  TestServer server;
  const auto stub = server.Connect();
  for (int chunks = 0; chunks < 3; ++chunks) {
    grpc::ClientContext context;
    v1::PutTensorsResponse response;
    auto writer = stub->PutTensors(&context, &response);
    v1::PutTensorsRequest request;
    *request.mutable_spec()->add_tensors() = Spec(v1::TENSOR_NAME_Q, {1, 1, 100, 8});
    writer->Write(request);
    for (int i = 0; i < chunks; ++i) {
      request.mutable_chunk()->set_byte_offset(i * 100);
      request.mutable_chunk()->set_data(std::string(100, 'x'));
      writer->Write(request);
    }
    if (chunks == 2) context.TryCancel();
    writer->WritesDone();
    EXPECT_FALSE(writer->Finish().ok());
  }
  EXPECT_TRUE(server.CleanAndServing());
  EXPECT_EQ(server.server().store().GetUse().bytes, 0);
}

TEST(KeptTensorsTest, BadShapesAreRefusedOnTheSpec) {
  TestServer server;
  const auto stub = server.Connect();
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{-1}, std::vector<int64_t>{int64_t{1} << 40, int64_t{1} << 40},
        std::vector<int64_t>{int64_t{1} << 61}, std::vector<int64_t>(20, 1)}) {
    grpc::ClientContext context;
    v1::PutTensorsResponse response;
    auto writer = stub->PutTensors(&context, &response);
    v1::PutTensorsRequest request;
    *request.mutable_spec()->add_tensors() = Spec(v1::TENSOR_NAME_Q, shape);
    writer->Write(request);
    writer->WritesDone();
    EXPECT_EQ(writer->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  }
  EXPECT_TRUE(server.CleanAndServing());
}

}  // namespace
}  // namespace flashbob::server
