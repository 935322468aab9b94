#include "server/service/get_tensors_call.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/service/messages.h"
#include "server/service/spec.h"

namespace flashbob::server {
namespace {

constexpr int64_t kSendChunkBytes = 1 << 20;
constexpr int kMaxTensors = 1000;

}  // namespace

GetTensorsCall::GetTensorsCall(const CallEnvironment& environment, grpc::CallbackServerContext& context,
                               const Storage& storage, std::shared_ptr<Tenant> tenant)
    : Call(environment, context, Method::kGetTensors), storage_(storage), tenant_(std::move(tenant)) {}

void GetTensorsCall::Start(const absl::StatusOr<v1::GetTensorsRequest>& request) {
  MutexLock lock(mutex_);
  const absl::Status opened = request.ok() ? OpenLocked(*request) : request.status();
  if (!opened.ok()) {
    EndLocked(opened);
    return;
  }
  WriteMessage(header_, outgoing_bytes_);
  WriteLocked();
}

void GetTensorsCall::OnWriteDone(bool ok) {
  MutexLock lock(mutex_);
  writing_ = false;
  if (!ok || ended()) return;
  if (download_->done()) {
    EndLocked(absl::OkStatus());
    return;
  }
  const Download::Chunk chunk = download_->Next();
  sent_bytes_ += static_cast<int64_t>(chunk.data.size());
  environment().metrics.AddBytesSent(static_cast<int64_t>(chunk.data.size()));
  outgoing_bytes_ = ChunkOf<v1::GetTensorsResponse>(chunk);
  WriteLocked();
}

void GetTensorsCall::ReleaseLocked() {
  // Chunks are copies: what is being written needs none of these.
  download_.reset();
  tensors_.clear();
}

void GetTensorsCall::CutIfIdleLocked(TimePoint now) {
  if (ended() || !writing_ || now - writing_since_ < environment().idle_limit) return;
  EndLocked(Error(Reason::kDeadline, absl::StrCat("the client took nothing for ", ToSeconds(environment().idle_limit),
                                                  " s; ", sent_bytes_, " bytes had been sent")));
  context().TryCancel();  // the status would queue behind the message that is not taken
}

void GetTensorsCall::DescribeLocked(LogFields& fields) {
  fields.emplace_back("tenant", tenant_->name());
  fields.emplace_back("sent_bytes", sent_bytes_);
}

void GetTensorsCall::DescribeLocked(CallView& view) {
  view.tenant = tenant_->name();
  view.state = "sending";
  view.waits_for = absl::StrCat("the client to take what it asked for: ", sent_bytes_, " bytes have been sent");
}

absl::Status GetTensorsCall::OpenLocked(const v1::GetTensorsRequest& request) {
  if (request.handles_size() > kMaxTensors) {
    return Error(Reason::kBadSpec, absl::StrCat(request.handles_size(), " handles; at most ", kMaxTensors));
  }
  std::vector<TensorBytes> places;
  for (const std::string& handle : request.handles()) {
    FLASHBOB_ASSIGN_OR_RETURN(StoredTensor tensor, storage_.store.Get(*tenant_, handle));
    *header_.mutable_header()->add_tensors() = ToProto(tensor.info);
    places.push_back({tensor.info.name, tensor.bytes->data(), tensor.bytes->bytes()});
    tensors_.push_back(std::move(tensor));
  }
  header_.mutable_header();
  download_ = std::make_unique<Download>(std::move(places), std::min(kSendChunkBytes, storage_.max_chunk_bytes));
  return absl::OkStatus();
}

void GetTensorsCall::WriteLocked() {
  writing_ = true;
  writing_since_ = environment().clock.Now();
  StartWrite(&outgoing_bytes_);
}

}  // namespace flashbob::server
