#include "tests/benchmark/bare_server.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flashbob/v1/attention_service.grpc.pb.h"

namespace flashbob {
namespace {

using google::protobuf::internal::WireFormatLite;

enum class Taking { kDiscard, kParse, kRaw };

std::string_view Metadata(const grpc::CallbackServerContext& context, const char* key) {
  const auto found = context.client_metadata().find(key);
  return found == context.client_metadata().end() ? std::string_view()
                                                  : std::string_view(found->second.data(), found->second.size());
}

Taking TakingOf(const grpc::CallbackServerContext& context) {
  const std::string_view token = Metadata(context, "authorization");
  if (token == "Bearer raw") return Taking::kRaw;
  return token == "Bearer parse" ? Taking::kParse : Taking::kDiscard;
}

std::vector<size_t> SizesOf(std::string_view text) {
  std::vector<size_t> sizes;
  for (const char* at = text.data(); at < text.data() + text.size();) {
    size_t size = 0;
    at = std::from_chars(at, text.data() + text.size(), size).ptr + 1;  // past the comma
    sizes.push_back(size);
  }
  return sizes;
}

template <class Message>
bool Parse(grpc::ByteBuffer& bytes, Message& message) {
  const bool ok = grpc::GenericDeserialize<grpc::ProtoBufferReader, Message>(&bytes, &message).ok();
  bytes.Clear();
  return ok;
}

// Where an upload lies. Chunks follow each other, whatever tensor they are of: so do the real server's blocks.
struct Place {
  std::byte* memory;
  size_t bytes;
  size_t at = 0;

  std::byte* Next(size_t size) {
    if (at + size > bytes) at = 0;
    return memory + std::exchange(at, at + size);
  }
};

// Copies the data of a PutTensorsRequest with a chunk to its place, without a message in between.
bool CopyRaw(grpc::ByteBuffer& bytes, Place& place) {
  bool ok = true;
  {
    grpc::ProtoBufferReader reader(&bytes);
    google::protobuf::io::CodedInputStream stream(&reader);
    uint32_t length = 0;
    ok = stream.ReadTag() == WireFormatLite::MakeTag(v1::PutTensorsRequest::kChunkFieldNumber,
                                                     WireFormatLite::WIRETYPE_LENGTH_DELIMITED) &&
         stream.ReadVarint32(&length);
    while (ok) {
      const uint32_t tag = stream.ReadTag();
      if (tag == 0) break;
      if (tag ==
          WireFormatLite::MakeTag(v1::TensorChunk::kDataFieldNumber, WireFormatLite::WIRETYPE_LENGTH_DELIMITED)) {
        ok = stream.ReadVarint32(&length) && length <= place.bytes &&
             stream.ReadRaw(place.Next(length), static_cast<int>(length));
      } else {
        ok = WireFormatLite::SkipField(&stream, tag);
      }
    }
  }
  bytes.Clear();
  return ok;
}

class PutReactor final : public grpc::ServerReadReactor<grpc::ByteBuffer> {
 public:
  PutReactor(Taking taking, Place place, grpc::ByteBuffer& response)
      : taking_(taking), place_(place), response_(response) {
    StartRead(&incoming_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      bool owned = false;
      grpc::GenericSerialize<grpc::ProtoBufferWriter, v1::PutTensorsResponse>(answer_, &response_, &owned);
      Finish(grpc::Status::OK);
      return;
    }
    if (Take()) {
      StartRead(&incoming_);
    } else {
      Finish(grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "no chunk"));
    }
  }

  void OnDone() override { delete this; }

 private:
  bool Take() {
    if (!has_spec_) {
      if (!Parse(incoming_, message_)) return false;
      has_spec_ = true;
      for (int i = 0; i < message_.spec().tensors_size(); ++i) answer_.add_handles("bare-" + std::to_string(i));
      return true;
    }
    if (taking_ == Taking::kRaw) return CopyRaw(incoming_, place_);
    if (taking_ == Taking::kDiscard) {
      incoming_.Clear();
      return true;
    }
    if (!Parse(incoming_, message_) || message_.chunk().data().size() > place_.bytes) return false;
    const std::string& data = message_.chunk().data();
    std::memcpy(place_.Next(data.size()), data.data(), data.size());
    return true;
  }

  const Taking taking_;
  Place place_;
  grpc::ByteBuffer& response_;
  grpc::ByteBuffer incoming_;
  v1::PutTensorsRequest message_;
  v1::PutTensorsResponse answer_;
  bool has_spec_ = false;
};

class EchoReactor final : public grpc::ServerBidiReactor<v1::ComputeRequest, v1::ComputeResponse> {
 public:
  explicit EchoReactor(std::vector<size_t> sizes) : sizes_(std::move(sizes)) { StartRead(&incoming_); }

  void OnReadDone(bool ok) override {
    if (ok) {
      StartRead(&incoming_);
    } else {
      SendNext();
    }
  }

  void OnWriteDone(bool ok) override {
    if (ok && sent_ < sizes_.size()) SendNext();
  }

  void OnDone() override { delete this; }

 private:
  void SendNext() {
    if (sizes_.empty()) return Finish(grpc::Status::OK);
    outgoing_.mutable_chunk()->mutable_data()->resize(sizes_[sent_++]);
    if (sent_ == sizes_.size()) {
      StartWriteAndFinish(&outgoing_, grpc::WriteOptions(), grpc::Status::OK);
    } else {
      StartWrite(&outgoing_);
    }
  }

  const std::vector<size_t> sizes_;
  size_t sent_ = 0;
  v1::ComputeRequest incoming_;
  v1::ComputeResponse outgoing_;
};

using Base = v1::AttentionService::WithCallbackMethod_Compute<v1::AttentionService::WithRawCallbackMethod_PutTensors<
    v1::AttentionService::WithCallbackMethod_DeleteTensors<v1::AttentionService::Service>>>;

}  // namespace

class BareServer::Service final : public Base {
 public:
  Service(std::byte* memory, size_t bytes) : memory_(memory), bytes_(bytes) {}

  grpc::ServerReadReactor<grpc::ByteBuffer>* PutTensors(grpc::CallbackServerContext* context,
                                                        grpc::ByteBuffer* response) override {
    return new PutReactor(TakingOf(*context), {memory_, bytes_}, *response);
  }
  grpc::ServerBidiReactor<v1::ComputeRequest, v1::ComputeResponse>* Compute(
      grpc::CallbackServerContext* context) override {
    return new EchoReactor(SizesOf(Metadata(*context, "reply-bytes")));
  }
  grpc::ServerUnaryReactor* DeleteTensors(grpc::CallbackServerContext* context, const v1::DeleteTensorsRequest*,
                                          v1::DeleteTensorsResponse*) override {
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

 private:
  std::byte* const memory_;
  const size_t bytes_;
};

absl::StatusOr<std::unique_ptr<BareServer>> BareServer::Start(Engine& engine, size_t bytes) {
  const absl::StatusOr<void*> memory = engine.AllocateHost(bytes);
  if (!memory.ok()) return memory.status();
  std::memset(*memory, 0, bytes);  // has it mapped
  std::unique_ptr<BareServer> bare(new BareServer(engine, static_cast<std::byte*>(*memory), bytes));
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &bare->port_);
  builder.RegisterService(bare->service_.get());
  builder.SetMaxReceiveMessageSize(8 << 20);
  builder.SetMaxSendMessageSize(-1);
  bare->server_ = builder.BuildAndStart();
  if (bare->server_ == nullptr) return absl::UnavailableError("the bare server does not start");
  return bare;
}

BareServer::BareServer(Engine& engine, std::byte* memory, size_t bytes)
    : engine_(engine), memory_(memory), service_(std::make_unique<Service>(memory, bytes)) {}

BareServer::~BareServer() {
  if (server_ != nullptr) {
    server_->Shutdown();
    server_->Wait();
  }
  engine_.FreeHost(memory_);
}

}  // namespace flashbob
