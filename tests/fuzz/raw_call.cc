#include "tests/fuzz/raw_call.h"

namespace flashbob::fuzz {

RawCall::RawCall(grpc::GenericStub& stub, const std::string& method, const std::string& token,
                 std::chrono::milliseconds deadline) {
  context_.set_deadline(std::chrono::system_clock::now() + deadline);
  if (!token.empty()) context_.AddMetadata("authorization", "Bearer " + token);
  stream_ = stub.PrepareCall(&context_, "/flashbob.v1.AttentionService/" + method, &queue_);
  stream_->StartCall(nullptr);
  Done();
}

RawCall::~RawCall() {
  if (!finished_) {
    Cancel();
    Finish();
  }
  queue_.Shutdown();
}

bool RawCall::Write(const std::string& message) {
  const grpc::Slice slice(message);
  stream_->Write(grpc::ByteBuffer(&slice, 1), nullptr);
  return Done();
}

bool RawCall::HalfClose() {
  stream_->WritesDone(nullptr);
  return Done();
}

std::optional<std::string> RawCall::Read() {
  grpc::ByteBuffer bytes;
  stream_->Read(&bytes, nullptr);
  if (!Done()) return std::nullopt;
  std::vector<grpc::Slice> slices;
  bytes.Dump(&slices);
  std::string message;
  for (const grpc::Slice& slice : slices) message.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return message;
}

grpc::Status RawCall::Finish() {
  grpc::Status status;
  stream_->Finish(&status, nullptr);
  Done();
  finished_ = true;
  return status;
}

bool RawCall::Done() {
  void* tag = nullptr;
  bool ok = false;
  return queue_.Next(&tag, &ok) && ok;
}

}  // namespace flashbob::fuzz
