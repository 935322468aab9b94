#include "client/cpp/store_attempts.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/request_stream.h"
#include "client/cpp/status.h"
#include "client/cpp/wire.h"
#include "kernels/base/status_macros.h"

namespace flashbob::client {
namespace {

// Where the stream breaks, its status says why.
//
// The last message ends our side with it. An end in a frame of its own may come when a server that waits for memory has
// made its windows smaller than what it has not read yet; gRPC 1.51 takes it for a byte too many then and resets the
// call.
void SendAll(PutStream& writer, const v1::PutTensorsSpec& spec, const std::vector<NamedTensor>& tensors,
             size_t chunk_bytes) {
  size_t left = 0;
  for (const NamedTensor& tensor : tensors) left += tensor.tensor.bytes.size();
  const auto send = [&](const grpc::ByteBuffer& message) {
    if (left > 0) return writer.Write(message);
    writer.WriteLast(message, {});
    return true;
  };
  v1::PutTensorsRequest message;
  *message.mutable_spec() = spec;
  if (!send(ToBytes(message))) return;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::span<const std::byte> bytes = tensors[i].tensor.bytes;
    for (size_t offset = 0; offset < bytes.size(); offset += chunk_bytes) {
      const size_t size = std::min(chunk_bytes, bytes.size() - offset);
      left -= size;
      if (!send(ChunkRequest(i, offset, bytes.subspan(offset, size)))) return;
    }
  }
}

// Takes the messages of GetTensors: a header, then chunks.
class Receiver {
 public:
  explicit Receiver(size_t tensors) : expected_(tensors) {}

  absl::Status Take(const v1::GetTensorsResponse& response) {
    if (response.has_header()) return TakeHeader(response.header());
    if (!response.has_chunk()) return absl::OkStatus();  // a newer server's
    const v1::TensorChunk& chunk = response.chunk();
    const size_t index = chunk.tensor_index();
    if (index >= tensors_.size()) {
      return absl::InternalError(absl::StrCat("the server sent a chunk of tensor ", index, " of ", tensors_.size()));
    }
    const std::span<std::byte> bytes = tensors_[index].mutable_bytes();
    const size_t offset = received_[index];
    if (chunk.byte_offset() != static_cast<int64_t>(offset) || chunk.data().size() > bytes.size() - offset) {
      return absl::InternalError(absl::StrCat("the server sent ", chunk.data().size(), " bytes of tensor ", index,
                                              " at ", chunk.byte_offset(), "; ", bytes.size() - offset, " at ", offset,
                                              " were due"));
    }
    if (!chunk.data().empty()) std::memcpy(bytes.data() + offset, chunk.data().data(), chunk.data().size());
    received_[index] += chunk.data().size();
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<Tensor>> Finish() {
    if (tensors_.size() != expected_) {
      return absl::InternalError(absl::StrCat("the server sent ", tensors_.size(), " tensors of ", expected_));
    }
    for (size_t i = 0; i < tensors_.size(); ++i) {
      if (received_[i] == tensors_[i].bytes().size()) continue;
      return absl::InternalError(absl::StrCat("the server sent ", received_[i], " of the ", tensors_[i].bytes().size(),
                                              " bytes of tensor ", i));
    }
    return std::move(tensors_);
  }

 private:
  absl::Status TakeHeader(const v1::GetTensorsHeader& header) {
    for (const v1::TensorSpec& spec : header.tensors()) {
      FLASHBOB_ASSIGN_OR_RETURN(Tensor tensor, ToOutputTensor(spec, std::nullopt));
      tensors_.push_back(std::move(tensor));
    }
    received_.resize(tensors_.size(), 0);
    return absl::OkStatus();
  }

  const size_t expected_;
  std::vector<Tensor> tensors_;
  std::vector<size_t> received_;  // bytes of each
};

}  // namespace

absl::StatusOr<std::vector<StoredTensor>> PutOnce(grpc::ChannelInterface& channel, grpc::ClientContext& context,
                                                  const v1::PutTensorsSpec& spec,
                                                  const std::vector<NamedTensor>& tensors, size_t chunk_bytes) {
  v1::PutTensorsResponse response;
  const std::unique_ptr<PutStream> writer = StartPut(channel, context, response);
  SendAll(*writer, spec, tensors, chunk_bytes);
  const grpc::Status status = writer->Finish();
  if (!status.ok()) return FromGrpcStatus(status);
  if (static_cast<size_t>(response.handles_size()) != tensors.size()) {
    return absl::InternalError(
        absl::StrCat("the server gave ", response.handles_size(), " handles for ", tensors.size(), " tensors"));
  }
  std::vector<StoredTensor> stored;
  for (size_t i = 0; i < tensors.size(); ++i) {
    stored.push_back({response.handles(static_cast<int>(i)), tensors[i].tensor.dtype, tensors[i].tensor.shape});
  }
  return stored;
}

absl::StatusOr<std::vector<Tensor>> GetOnce(v1::AttentionService::Stub& stub, grpc::ClientContext& context,
                                            const std::vector<StoredTensor>& tensors) {
  v1::GetTensorsRequest request;
  for (const StoredTensor& tensor : tensors) request.add_handles(tensor.handle);
  const auto reader = stub.GetTensors(&context, request);
  Receiver receiver(tensors.size());
  absl::Status broken;
  v1::GetTensorsResponse response;
  while (reader->Read(&response)) {
    if (!broken.ok()) continue;
    broken = receiver.Take(response);
    if (!broken.ok()) context.TryCancel();
  }
  const grpc::Status status = reader->Finish();
  if (!broken.ok()) return broken;
  if (!status.ok()) return FromGrpcStatus(status);
  return receiver.Finish();
}

absl::StatusOr<int64_t> DeleteOnce(v1::AttentionService::Stub& stub, grpc::ClientContext& context,
                                   const std::vector<StoredTensor>& tensors) {
  v1::DeleteTensorsRequest request;
  for (const StoredTensor& tensor : tensors) request.add_handles(tensor.handle);
  v1::DeleteTensorsResponse response;
  const grpc::Status status = stub.DeleteTensors(&context, request, &response);
  if (!status.ok()) return FromGrpcStatus(status);
  return response.deleted();
}

}  // namespace flashbob::client
