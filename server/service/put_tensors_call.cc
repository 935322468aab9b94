#include "server/service/put_tensors_call.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/service/messages.h"
#include "server/service/spec.h"

namespace flashbob::server {

PutTensorsCall::PutTensorsCall(const CallEnvironment& environment, grpc::CallbackServerContext& context,
                               const Storage& storage, std::shared_ptr<Tenant> tenant, std::string own_request_id,
                               grpc::ByteBuffer& response)
    : Call(environment, context, Method::kPutTensors),
      storage_(storage),
      tenant_(std::move(tenant)),
      response_(response),
      request_id_(std::move(own_request_id)) {}

void PutTensorsCall::Start() {
  MutexLock lock(mutex_);
  ReadLocked();
}

void PutTensorsCall::OnReadDone(bool ok) {
  MutexLock lock(mutex_);
  reading_ = false;
  if (ended()) return;
  if (!ok) {
    // Where the client went away, OnCancel says so.
    if (!context().IsCancelled()) EndLocked(StoreLocked());
    return;
  }
  absl::Status taken = ReadMessage(incoming_bytes_, incoming_);
  if (taken.ok()) taken = TakeMessageLocked();
  if (taken.ok()) {
    ReadLocked();
  } else {
    EndLocked(taken);
  }
}

void PutTensorsCall::ReleaseLocked() {
  items_.clear();
  room_ = StoreRoom();
  transit_ = Reservation();
}

void PutTensorsCall::CutIfIdleLocked(TimePoint now) {
  const Duration limit = environment().idle_limit;
  if (ended() || !reading_ || now - reading_since_ < limit) return;
  const std::string what = upload_ == nullptr ? "no spec came:"
                                              : absl::StrCat(upload_->received_bytes(), " of ", upload_->total_bytes(),
                                                             " bytes had come, then");
  EndLocked(Error(Reason::kDeadline,
                  absl::StrCat(what, " nothing for ", ToSeconds(limit), " s, after which an idle upload is cut")));
}

void PutTensorsCall::DescribeLocked(LogFields& fields) {
  fields.emplace_back("request_id", request_id_);
  fields.emplace_back("tenant", tenant_->name());
  fields.emplace_back("received_bytes", upload_ == nullptr ? int64_t{0} : upload_->received_bytes());
}

void PutTensorsCall::DescribeLocked(CallView& view) {
  view.request_id = request_id_;
  view.tenant = tenant_->name();
  view.state = "receiving";
  view.waits_for = upload_ == nullptr ? std::string("the client: its spec has not come")
                                      : absl::StrCat("the client: ", upload_->received_bytes(), " of ",
                                                     upload_->total_bytes(), " bytes have come");
}

void PutTensorsCall::ReadLocked() {
  reading_ = true;
  reading_since_ = environment().clock.Now();
  StartRead(&incoming_bytes_);
}

absl::Status PutTensorsCall::TakeMessageLocked() {
  switch (incoming_.payload_case()) {
    case v1::PutTensorsRequest::kSpec:
      if (upload_ != nullptr) return Error(Reason::kBadSpec, "a second spec");
      return TakeSpecLocked(incoming_.spec());
    case v1::PutTensorsRequest::kChunk: {
      if (upload_ == nullptr) return Error(Reason::kBadSpec, "a chunk before the spec");
      FLASHBOB_RETURN_IF_ERROR(upload_->Accept(incoming_.chunk()));
      environment().metrics.AddBytesReceived(static_cast<int64_t>(incoming_.chunk().data().size()));
      return absl::OkStatus();
    }
    case v1::PutTensorsRequest::PAYLOAD_NOT_SET:
      break;
  }
  return Error(Reason::kBadSpec, "a message with neither spec nor chunk");
}

absl::Status PutTensorsCall::TakeSpecLocked(const v1::PutTensorsSpec& spec) {
  FLASHBOB_RETURN_IF_ERROR(CheckRequestId(spec.request_id()));
  if (!spec.request_id().empty()) request_id_ = spec.request_id();
  FLASHBOB_ASSIGN_OR_RETURN(const std::vector<TensorInfo> infos, ParseTensors(spec));
  int64_t largest = 0;
  int64_t total = 0;
  for (const TensorInfo& info : infos) {
    const int64_t bytes = BytesOf(info);
    largest = std::max(largest, bytes);
    if (bytes > storage_.store.options().max_bytes - total) {
      // More than there can be, perhaps than can be added up: the store says so.
      total = bytes > std::numeric_limits<int64_t>::max() - total ? bytes : total + bytes;
      break;
    }
    total += HostMemoryPool::BlockBytes(bytes);
  }
  FLASHBOB_ASSIGN_OR_RETURN(room_, storage_.store.Reserve(total));
  FLASHBOB_ASSIGN_OR_RETURN(TenantHold hold, tenant_->Hold(total, 0));

  const int64_t transit = std::min(largest, storage_.max_message_bytes);
  std::optional<Reservation> memory = storage_.pool.TryReserve(total + transit);
  if (!memory.has_value()) {
    storage_.store.DropExpired();
    memory = storage_.pool.TryReserve(total + transit);
  }
  if (!memory.has_value()) {
    const PoolUse use = storage_.pool.Use();
    return RetryableError(
        Reason::kQueueFull,
        absl::StrCat("tensors of ", total, " bytes; of the ", use.limit_bytes, " bytes of host memory ",
                     use.reserved_bytes, " are in use and ", use.waiting, " requests wait for some"),
        std::chrono::seconds(1));
  }
  std::vector<TensorBytes> places;
  for (const TensorInfo& info : infos) {
    TensorStore::Item item;
    item.request_id = request_id_;
    item.info = info;
    item.lease = std::chrono::seconds(std::clamp<int64_t>(spec.lease_seconds(), 0, 1'000'000'000));
    FLASHBOB_ASSIGN_OR_RETURN(item.bytes, storage_.pool.Allocate(*memory, BytesOf(info)));
    item.hold = hold.Split(HostMemoryPool::BlockBytes(BytesOf(info)));
    places.push_back({info.name, item.bytes.data(), BytesOf(info)});
    items_.push_back(std::move(item));
  }
  transit_ = *std::move(memory);
  upload_ = std::make_unique<Upload>(std::move(places), storage_.max_chunk_bytes);
  return absl::OkStatus();
}

absl::Status PutTensorsCall::StoreLocked() {
  if (upload_ == nullptr) return Error(Reason::kBadSpec, "the stream ended before a spec came");
  FLASHBOB_RETURN_IF_ERROR(upload_->Ended());
  v1::PutTensorsResponse response;
  for (TensorStore::Item& item : items_) {
    response.add_handles(storage_.store.Put(*tenant_, room_, std::move(item)));
  }
  WriteMessage(response, response_);
  return absl::OkStatus();
}

}  // namespace flashbob::server
