#include "tests/server/testing/compute_client.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "flashbob/v1/error_details.pb.h"

namespace flashbob::server {

std::shared_ptr<grpc::Channel> ConnectTo(int port, bool small_window) {
  return ConnectTo(absl::StrCat("127.0.0.1:", port), small_window);
}

std::shared_ptr<grpc::Channel> ConnectTo(const std::string& address, bool small_window) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of its own
  if (small_window) arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

v1::ComputeSpec ForwardSpec(int64_t heads, int64_t length, int64_t dim) {
  v1::ComputeSpec spec;
  spec.set_operation(v1::OPERATION_FORWARD);
  spec.mutable_problem()->set_layout(v1::LAYOUT_BHND);
  for (v1::TensorName name : {v1::TENSOR_NAME_Q, v1::TENSOR_NAME_K, v1::TENSOR_NAME_V}) {
    v1::InputTensor& input = *spec.add_inputs();
    input.mutable_tensor()->set_name(name);
    input.mutable_tensor()->set_dtype(v1::DATA_TYPE_FP32);
    for (int64_t extent : {int64_t{1}, heads, length, dim}) input.mutable_tensor()->add_shape(extent);
    input.mutable_inline_();
  }
  return spec;
}

int64_t BytesOf(const v1::InputTensor& input) {
  int64_t bytes = 0;
  switch (input.tensor().dtype()) {
    case v1::DATA_TYPE_FP32:
      bytes = 4;
      break;
    case v1::DATA_TYPE_FP64:
      bytes = 8;
      break;
    default:
      bytes = 2;
  }
  for (int64_t extent : input.tensor().shape()) bytes *= extent;
  return bytes;
}

WireError Decode(const grpc::Status& status) {
  WireError error;
  error.code = status.error_code();
  error.text = status.error_message();
  v1::StatusDetails details;
  if (!details.ParseFromString(status.error_details())) return error;
  for (const google::protobuf::Any& detail : details.details()) {
    v1::ErrorInfo info;
    v1::RetryInfo retry;
    if (detail.type_url() == "type.googleapis.com/google.rpc.ErrorInfo" && info.ParseFromString(detail.value())) {
      error.reason = info.reason();
      error.domain = info.domain();
    }
    if (detail.type_url() == "type.googleapis.com/google.rpc.RetryInfo" && retry.ParseFromString(detail.value())) {
      error.retry_seconds = static_cast<double>(retry.retry_delay().seconds()) + retry.retry_delay().nanos() * 1e-9;
    }
  }
  return error;
}

ComputeStream::ComputeStream(v1::AttentionService::Stub& stub)
    : context_(std::make_unique<grpc::ClientContext>()), stream_(stub.Compute(context_.get())) {}

ComputeStream::ComputeStream(v1::AttentionService::Stub& stub, const std::string& token)
    : context_(std::make_unique<grpc::ClientContext>()) {
  context_->AddMetadata("authorization", "Bearer " + token);
  stream_ = stub.Compute(context_.get());
}

ComputeStream::ComputeStream(v1::AttentionService::Stub& stub, std::chrono::milliseconds deadline)
    : context_(std::make_unique<grpc::ClientContext>()) {
  context_->set_deadline(std::chrono::system_clock::now() + deadline);
  stream_ = stub.Compute(context_.get());
}

ComputeStream::~ComputeStream() {
  if (finished_) return;
  context_->TryCancel();
  Finish();
}

bool ComputeStream::Send(const v1::ComputeSpec& spec) {
  v1::ComputeRequest request;
  *request.mutable_spec() = spec;
  return SendRaw(request);
}

bool ComputeStream::Send(uint32_t tensor, int64_t offset, const std::string& data) {
  v1::ComputeRequest request;
  request.mutable_chunk()->set_tensor_index(tensor);
  request.mutable_chunk()->set_byte_offset(offset);
  request.mutable_chunk()->set_data(data);
  return SendRaw(request);
}

void ComputeStream::SendLast(uint32_t tensor, int64_t offset, const std::string& data) {
  v1::ComputeRequest request;
  request.mutable_chunk()->set_tensor_index(tensor);
  request.mutable_chunk()->set_byte_offset(offset);
  request.mutable_chunk()->set_data(data);
  stream_->WriteLast(request, {});
  closed_ = true;
}

bool ComputeStream::SendInputs(const v1::ComputeSpec& spec, int64_t chunk_bytes) {
  for (int t = 0; t < spec.inputs_size(); ++t) {
    const int64_t bytes = BytesOf(spec.inputs(t));
    for (int64_t offset = 0; offset < bytes; offset += chunk_bytes) {
      std::string data(static_cast<size_t>(std::min(chunk_bytes, bytes - offset)), '\0');
      for (size_t i = 0; i < data.size(); ++i) {
        data[i] = PatternByte(static_cast<size_t>(t), offset + static_cast<int64_t>(i));
      }
      if (!Send(static_cast<uint32_t>(t), offset, data)) return false;
    }
  }
  return true;
}

bool ComputeStream::SendRaw(const v1::ComputeRequest& request) { return stream_->Write(request); }

void ComputeStream::CloseSending() {
  if (!closed_) stream_->WritesDone();
  closed_ = true;
}

std::optional<v1::ComputeResponse> ComputeStream::Receive() {
  v1::ComputeResponse response;
  if (!stream_->Read(&response)) return std::nullopt;
  return response;
}

grpc::Status ComputeStream::Finish() {
  while (Receive().has_value()) {
  }
  finished_ = true;
  return stream_->Finish();
}

Computed ReceiveAll(ComputeStream& stream) {
  Computed computed;
  while (std::optional<v1::ComputeResponse> response = stream.Receive()) {
    switch (response->payload_case()) {
      case v1::ComputeResponse::kAccepted:
        computed.accepted = response->accepted();
        break;
      case v1::ComputeResponse::kProgress:
        computed.progress.push_back(response->progress());
        break;
      case v1::ComputeResponse::kResult:
        computed.result = response->result();
        if (response->result().has_accepted()) computed.accepted = response->result().accepted();
        for (const v1::ResultTensor& tensor : response->result().tensors()) computed.outputs.push_back(tensor.data());
        break;
      case v1::ComputeResponse::kChunk: {
        const v1::TensorChunk& chunk = response->chunk();
        computed.largest_chunk_bytes =
            std::max(computed.largest_chunk_bytes, static_cast<int64_t>(chunk.data().size()));
        if (chunk.tensor_index() < computed.outputs.size() &&
            chunk.byte_offset() == static_cast<int64_t>(computed.outputs[chunk.tensor_index()].size())) {
          computed.outputs[chunk.tensor_index()] += chunk.data();
        }
        break;
      }
      case v1::ComputeResponse::PAYLOAD_NOT_SET:
        break;
    }
  }
  computed.status = stream.Finish();
  return computed;
}

Computed Compute(v1::AttentionService::Stub& stub, const v1::ComputeSpec& spec, int64_t chunk_bytes) {
  ComputeStream stream(stub);
  if (stream.Send(spec) && stream.SendInputs(spec, chunk_bytes)) stream.CloseSending();
  return ReceiveAll(stream);
}

}  // namespace flashbob::server
