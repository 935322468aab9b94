#include "tests/client/fake_service.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "flashbob/v1/error_details.pb.h"

namespace flashbob::client {

FakeService::FakeService(std::vector<Step> script) : script_(std::move(script)) {
  grpc::EnableDefaultHealthCheckService(true);  // as every server of ours has one
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
  builder.SetMaxReceiveMessageSize(64 << 20);
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
}

FakeService::~FakeService() { server_->Shutdown(std::chrono::system_clock::now()); }

std::string FakeService::address() const { return absl::StrCat("127.0.0.1:", port_); }

int FakeService::Calls() const { return static_cast<int>(Specs().size()); }

std::vector<v1::ComputeSpec> FakeService::Specs() const {
  const MutexLock lock(mutex_);
  return specs_;
}

grpc::Status FakeService::Compute(grpc::ServerContext* context, ServerStream* stream) {
  v1::ComputeRequest first;
  if (!stream->Read(&first) || !first.has_spec()) return {grpc::StatusCode::INVALID_ARGUMENT, "no spec"};
  size_t step = 0;
  {
    const MutexLock lock(mutex_);
    step = std::min(specs_.size(), script_.size() - 1);
    specs_.push_back(first.spec());
  }
  return script_[step](*context, first.spec(), *stream);
}

grpc::Status FakeService::GetServerInfo(grpc::ServerContext*, const v1::GetServerInfoRequest*,
                                        v1::GetServerInfoResponse* response) {
  *response = info;
  return grpc::Status::OK;
}

grpc::Status ErrorWithDetails(grpc::StatusCode code, const std::string& text, const std::string& reason,
                              std::optional<int64_t> retry_milliseconds) {
  v1::StatusDetails details;
  details.set_code(code);
  details.set_message(text);
  const auto add = [&](const char* type, const google::protobuf::Message& message) {
    google::protobuf::Any& any = *details.add_details();
    any.set_type_url(absl::StrCat("type.googleapis.com/google.rpc.", type));
    any.set_value(message.SerializeAsString());
  };
  v1::ErrorInfo info;
  info.set_reason(reason);
  info.set_domain("flashbob");
  info.mutable_metadata()->insert({"limit", "7"});
  add("ErrorInfo", info);
  if (retry_milliseconds.has_value()) {
    v1::RetryInfo retry;
    retry.mutable_retry_delay()->set_seconds(*retry_milliseconds / 1000);
    retry.mutable_retry_delay()->set_nanos(static_cast<int32_t>(*retry_milliseconds % 1000 * 1000000));
    add("RetryInfo", retry);
  }
  return {code, text, details.SerializeAsString()};
}

std::optional<std::vector<std::string>> ReadInputs(const v1::ComputeSpec& spec, ServerStream& stream) {
  std::vector<std::string> inputs(static_cast<size_t>(spec.inputs_size()));
  v1::ComputeRequest request;
  while (stream.Read(&request)) {
    if (!request.has_chunk() || request.chunk().tensor_index() >= inputs.size()) return std::nullopt;
    std::string& input = inputs[request.chunk().tensor_index()];
    if (request.chunk().byte_offset() != static_cast<int64_t>(input.size())) return std::nullopt;
    input += request.chunk().data();
  }
  return inputs;
}

v1::ComputeResponse Accepted(const v1::ComputeSpec& spec) {
  v1::ComputeResponse response;
  v1::ComputeAccepted& accepted = *response.mutable_accepted();
  accepted.set_request_id(spec.request_id());
  accepted.set_estimated_flops(100);
  accepted.set_queue_position(3);
  accepted.mutable_estimated_wait()->set_nanos(5000000);
  return response;
}

v1::ComputeResponse ProgressOf(double done, double total) {
  v1::ComputeResponse response;
  response.mutable_progress()->set_done_flops(done);
  response.mutable_progress()->set_total_flops(total);
  return response;
}

v1::ComputeResponse ResultOf(v1::TensorName name, const std::vector<int64_t>& shape) {
  v1::ComputeResponse response;
  v1::ComputeResult& result = *response.mutable_result();
  v1::TensorSpec& tensor = *result.add_tensors()->mutable_tensor();
  tensor.set_name(name);
  tensor.set_dtype(v1::DATA_TYPE_FP32);
  tensor.mutable_shape()->Add(shape.begin(), shape.end());
  result.mutable_timings()->mutable_receive()->set_nanos(1);
  result.mutable_timings()->mutable_queue()->set_nanos(2);
  result.mutable_timings()->mutable_compute()->set_seconds(3);
  result.set_device("fake");
  return response;
}

v1::ComputeResponse ChunkOf(uint32_t index, int64_t offset, const std::string& data) {
  v1::ComputeResponse response;
  response.mutable_chunk()->set_tensor_index(index);
  response.mutable_chunk()->set_byte_offset(offset);
  response.mutable_chunk()->set_data(data);
  return response;
}

FakeService::Step Echo(v1::TensorName name) {
  return [name](grpc::ServerContext&, const v1::ComputeSpec& spec, ServerStream& stream) -> grpc::Status {
    stream.Write(Accepted(spec));
    const auto inputs = ReadInputs(spec, stream);
    if (!inputs.has_value()) return {grpc::StatusCode::INVALID_ARGUMENT, "chunks out of order"};
    const auto& shape = spec.inputs(0).tensor().shape();
    stream.Write(ProgressOf(50, 100));
    stream.Write(ResultOf(name, {shape.begin(), shape.end()}));
    const std::string& bytes = inputs->front();
    const size_t half = bytes.size() / 2;
    stream.Write(ChunkOf(0, 0, bytes.substr(0, half)));
    stream.Write(ChunkOf(0, static_cast<int64_t>(half), bytes.substr(half)));
    return grpc::Status::OK;
  };
}

FakeService::Step FailWith(const grpc::Status& status) {
  return [status](grpc::ServerContext&, const v1::ComputeSpec&, ServerStream&) { return status; };
}

FakeService::Step AnswerWith(const std::vector<v1::ComputeResponse>& messages) {
  return [messages](grpc::ServerContext&, const v1::ComputeSpec& spec, ServerStream& stream) {
    ReadInputs(spec, stream);
    for (const v1::ComputeResponse& message : messages) stream.Write(message);
    return grpc::Status::OK;
  };
}

void Gate::Open() {
  const MutexLock lock(mutex_);
  open_ = true;
  changed_.NotifyAll();
}

void Gate::Wait() {
  const MutexLock lock(mutex_);
  while (!open_) changed_.Wait(mutex_);
}

FakeService::Step HoldUntil(Gate& gate) {
  return [&gate](grpc::ServerContext&, const v1::ComputeSpec& spec, ServerStream& stream) {
    stream.Write(Accepted(spec));
    ReadInputs(spec, stream);
    gate.Wait();
    return stream.Write(ProgressOf(1, 100)) ? grpc::Status::OK : grpc::Status::CANCELLED;
  };
}

}  // namespace flashbob::client
