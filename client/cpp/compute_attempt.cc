#include "client/cpp/compute_attempt.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cpp/request_stream.h"
#include "client/cpp/status.h"
#include "client/cpp/wire.h"
#include "kernels/base/status_macros.h"

namespace flashbob::client {
namespace {

// Sends the spec and the chunks. One thread both sends and receives: the server's few messages before the last input
// byte wait in the stream meanwhile.
class Uploader {
 public:
  explicit Uploader(const ComputeAttempt& attempt) : attempt_(attempt) {
    for (const NamedTensor& input : attempt.request.inputs) total_ += input.tensor.bytes.size();
  }

  // False where the stream broke: its status says why.
  bool Run(ComputeStream& stream) {
    v1::ComputeRequest message;
    *message.mutable_spec() = attempt_.spec;
    if (total_ == 0) {
      stream.WriteLast(ToBytes(message), {});
      return true;
    }
    if (!stream.Write(ToBytes(message))) return false;
    Report();
    for (size_t i = 0; i < attempt_.request.inputs.size(); ++i) {
      const std::span<const std::byte> bytes = attempt_.request.inputs[i].tensor.bytes;
      for (size_t offset = 0; offset < bytes.size();) {
        const size_t size = std::min(attempt_.chunk_bytes, bytes.size() - offset);
        const grpc::ByteBuffer chunk = ChunkRequest(i, offset, bytes.subspan(offset, size));
        offset += size;
        done_ += size;
        const bool last = done_ == total_;
        // The last message closes our side with it: a packet less for a small request.
        if (last) stream.WriteLast(chunk, {});
        if (!last && !stream.Write(chunk)) return false;
        Report();
      }
    }
    return true;
  }

 private:
  void Report() const {
    if (!attempt_.progress) return;
    attempt_.progress({.phase = Progress::Phase::kUploading,
                       .done = static_cast<double>(done_),
                       .total = static_cast<double>(total_)});
  }

  const ComputeAttempt& attempt_;
  size_t done_ = 0;
  size_t total_ = 0;
};

// Takes the server's messages in the order that the contract gives them: accepted, progress, result, chunks. The result
// of a brief answer may hold what `accepted` says, and the first outputs.
class Downloader {
 public:
  explicit Downloader(const ComputeAttempt& attempt) : attempt_(attempt) {}

  absl::Status Take(const v1::ComputeResponse& response) {
    switch (response.payload_case()) {
      case v1::ComputeResponse::kAccepted:
        return TakeAccepted(response.accepted());
      case v1::ComputeResponse::kProgress:
        Report({.phase = Progress::Phase::kComputing,
                .done = response.progress().done_flops(),
                .total = response.progress().total_flops()});
        return absl::OkStatus();
      case v1::ComputeResponse::kResult:
        return TakeResult(response.result());
      case v1::ComputeResponse::kChunk:
        return TakeBytes(response.chunk().tensor_index(), response.chunk().byte_offset(), response.chunk().data());
      case v1::ComputeResponse::PAYLOAD_NOT_SET:
        break;  // a newer server's: nothing that this client needs
    }
    return absl::OkStatus();
  }

  // The result, once the server said OK.
  absl::StatusOr<Result> Finish() {
    if (!has_result_) return absl::InternalError("the server ended the call without a result");
    for (size_t i = 0; i < received_.size(); ++i) {
      const size_t size = result_.outputs[i].tensor.bytes().size();
      if (received_[i] != size) {
        return absl::InternalError(
            absl::StrCat("the server sent ", received_[i], " of the ", size, " bytes of ", result_.outputs[i].name));
      }
    }
    return std::move(result_);
  }

 private:
  absl::Status TakeAccepted(const v1::ComputeAccepted& accepted) {
    result_.request_id = accepted.request_id();
    result_.flops = accepted.estimated_flops();
    Report({.phase = Progress::Phase::kQueued,
            .done = 0,
            .total = accepted.estimated_flops(),
            .queue_position = accepted.queue_position(),
            .estimated_wait = ToNanoseconds(accepted.estimated_wait())});
    return absl::OkStatus();
  }

  absl::Status TakeResult(const v1::ComputeResult& wire) {
    if (has_result_) return absl::InternalError("the server sent a second result");
    has_result_ = true;
    if (wire.has_accepted()) FLASHBOB_RETURN_IF_ERROR(TakeAccepted(wire.accepted()));
    result_.timings = ToTimings(wire.timings());
    result_.device = wire.device();
    for (const v1::ResultTensor& announced : wire.tensors()) {
      std::optional<std::span<std::byte>> into;
      FLASHBOB_ASSIGN_OR_RETURN(const std::string name, ToOutputName(announced.tensor()));
      if (result_.Find(name) != nullptr) return absl::InternalError(absl::StrCat("the server sent ", name, " twice"));
      const auto& wanted = attempt_.request.outputs;
      const auto it = std::find_if(wanted.begin(), wanted.end(), [&](const auto& want) { return want.name == name; });
      if (it != wanted.end()) into = it->into;
      if (it == wanted.end() && !wanted.empty()) {
        return absl::InternalError(absl::StrCat("the server sent ", name, ", which was not asked for"));
      }
      if (!announced.handle().empty()) {
        FLASHBOB_ASSIGN_OR_RETURN(StoredTensor stored, ToStoredTensor(announced.tensor(), announced.handle()));
        result_.outputs.push_back({name, Tensor(), std::move(stored)});
        continue;
      }
      FLASHBOB_ASSIGN_OR_RETURN(Tensor tensor, ToOutputTensor(announced.tensor(), into));
      total_ += static_cast<double>(tensor.bytes().size());
      result_.outputs.push_back({name, std::move(tensor), std::nullopt});
    }
    for (const WantedOutput& want : attempt_.request.outputs) {
      if (result_.Find(want.name) == nullptr) {
        return absl::InternalError(absl::StrCat("the server's result lacks ", want.name));
      }
    }
    received_.assign(result_.outputs.size(), 0);
    for (int i = 0; i < wire.tensors_size(); ++i) {
      if (wire.tensors(i).data().empty()) continue;
      FLASHBOB_RETURN_IF_ERROR(TakeBytes(static_cast<size_t>(i), 0, wire.tensors(i).data()));
    }
    return absl::OkStatus();
  }

  absl::Status TakeBytes(size_t index, int64_t byte_offset, const std::string& data) {
    if (index >= received_.size()) {
      return absl::InternalError(absl::StrCat("the server sent a chunk of tensor ", index, " of ", received_.size()));
    }
    NamedOutput& output = result_.outputs[index];
    const std::span<std::byte> bytes = output.tensor.mutable_bytes();
    const size_t offset = received_[index];
    if (byte_offset != static_cast<int64_t>(offset) || data.size() > bytes.size() - offset) {
      return absl::InternalError(absl::StrCat("the server sent ", data.size(), " bytes of ", output.name, " at ",
                                              byte_offset, "; ", bytes.size() - offset, " at ", offset, " were due"));
    }
    if (!data.empty()) std::memcpy(bytes.data() + offset, data.data(), data.size());
    received_[index] += data.size();
    done_ += static_cast<double>(data.size());
    Report({.phase = Progress::Phase::kDownloading, .done = done_, .total = total_});
    return absl::OkStatus();
  }

  void Report(const Progress& progress) const {
    if (attempt_.progress) attempt_.progress(progress);
  }

  const ComputeAttempt& attempt_;
  Result result_;
  bool has_result_ = false;
  std::vector<size_t> received_;  // bytes of each output
  double done_ = 0;
  double total_ = 0;
};

}  // namespace

absl::StatusOr<Result> RunComputeAttempt(const ComputeAttempt& attempt, grpc::ClientContext& context) {
  context.set_initial_metadata_corked(true);  // the headers travel with the spec
  const Cancellation::Registration cancel(attempt.cancellation, [&context] { context.TryCancel(); });

  const std::unique_ptr<ComputeStream> stream = StartCompute(attempt.channel, context);
  Uploader(attempt).Run(*stream);
  Downloader downloader(attempt);
  absl::Status broken = absl::OkStatus();
  v1::ComputeResponse response;
  // To the end in any case: the status comes after the last message.
  while (stream->Read(&response)) {
    if (!broken.ok()) continue;
    broken = downloader.Take(response);
    if (!broken.ok()) context.TryCancel();
  }
  const grpc::Status status = stream->Finish();
  if (!broken.ok()) return broken;
  if (!status.ok()) return FromGrpcStatus(status);
  return downloader.Finish();
}

}  // namespace flashbob::client
