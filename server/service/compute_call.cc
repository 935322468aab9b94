#include "server/service/compute_call.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/base/errors.h"
#include "server/service/messages.h"

namespace flashbob::server {
namespace {

constexpr int64_t kSendChunkBytes = 1 << 20;
constexpr Duration kProgressInterval = std::chrono::milliseconds(250);

void SetDuration(google::protobuf::Duration& proto, Duration duration) {
  proto.set_seconds(duration / std::chrono::seconds(1));
  proto.set_nanos(static_cast<int32_t>((duration % std::chrono::seconds(1)).count()));
}

}  // namespace

ComputeCall::ComputeCall(const CallEnvironment& environment, grpc::CallbackServerContext& context,
                         const ComputeEnvironment& compute, std::shared_ptr<Tenant> tenant, std::string own_request_id)
    : Call(environment, context, Method::kCompute),
      compute_(compute),
      tenant_(std::move(tenant)),
      request_id_(std::move(own_request_id)),
      began_(environment.clock.Now()) {}

void ComputeCall::Start() {
  MutexLock lock(mutex_);
  if (!ended()) ReadLocked();
}

void ComputeCall::OnReadDone(bool ok) {
  {
    MutexLock lock(mutex_);
    reading_ = false;
    if (ended()) return;
    if (!ok) {
      // Where the client went away, OnCancel says so.
      if (context().IsCancelled()) return;
      const absl::Status ended = UploadEndedLocked();
      if (!ended.ok()) EndLocked(ended);
      return;
    }
    absl::Status taken = ReadMessage(incoming_bytes_, incoming_);
    if (taken.ok()) taken = TakeMessageLocked();
    if (!taken.ok()) {
      EndLocked(taken);
      return;
    }
    if (ready_ == nullptr) {
      if (upload_ != nullptr && !reading_) ReadLocked();
      return;
    }
  }
  PassOn();
}

void ComputeCall::PassOn() {
  std::shared_ptr<Request> ready;
  {
    MutexLock lock(mutex_);
    ready = std::exchange(ready_, nullptr);
  }
  compute_.scheduler.Ready(ready);
  MutexLock lock(mutex_);
  if (ended()) return;
  // Not before: to send it takes as long as to wake the device's thread up.
  WriteLocked();
  if (!reading_) ReadLocked();
}

void ComputeCall::OnWriteDone(bool ok) {
  MutexLock lock(mutex_);
  writing_ = false;
  if (ok && !ended()) WriteLocked();
}

void ComputeCall::OnAdmitted() {
  {
    MutexLock lock(mutex_);
    if (ended()) return;
    AdmittedLocked();
    if (ready_ == nullptr) return;
  }
  PassOn();
}

void ComputeCall::OnProgress(double done_flops) {
  MutexLock lock(mutex_);
  const TimePoint now = environment().clock.Now();
  if (ended() || now - progress_at_ < kProgressInterval) return;
  progress_at_ = now;
  progress_due_ = done_flops;
  WriteLocked();
}

void ComputeCall::OnComputed(const absl::Status& status) {
  MutexLock lock(mutex_);
  if (ended()) return;
  if (!status.ok()) {
    EndLocked(status);
    return;
  }
  computed_at_ = environment().clock.Now();
  timings_ = request_->timings();
  environment().metrics.Observe(Stage::kReceive, timings_.receive);
  environment().metrics.Observe(Stage::kQueue, timings_.queue);
  environment().metrics.Observe(Stage::kDevice, timings_.compute);
  KeepOutputsLocked();
  download_ =
      std::make_unique<Download>(OutputBytesLocked(), std::min(kSendChunkBytes, compute_.storage.max_chunk_bytes));
  progress_due_.reset();
  result_due_ = true;
  WriteLocked();
}

void ComputeCall::ReleaseLocked() {
  room_ = StoreRoom();
  if (request_ == nullptr) return;
  compute_.scheduler.Release(request_);
  request_.reset();
  download_.reset();
}

void ComputeCall::CutIfIdleLocked(TimePoint now) {
  if (ended()) return;
  // Where all inputs are there, the result may hold it, or PassOn sends it.
  if (accepted_due_.has_value() && !upload_->complete()) WriteLocked();
  const Duration limit = environment().idle_limit;
  if (reading_ && (upload_ == nullptr || !upload_->complete()) && now - reading_since_ >= limit) {
    const std::string what = spec_.has_value() ? absl::StrCat(upload_->received_bytes(), " of ", upload_->total_bytes(),
                                                              " input bytes had come, then")
                                               : "no spec came:";
    EndLocked(Error(Reason::kDeadline,
                    absl::StrCat(what, " nothing for ", ToSeconds(limit), " s, after which an idle upload is cut")));
  } else if (writing_ && now - writing_since_ >= limit) {
    EndLocked(Error(Reason::kDeadline, absl::StrCat("the client took nothing of the result for ", ToSeconds(limit),
                                                    " s; ", sent_bytes_, " bytes had been sent")));
    context().TryCancel();  // the status would queue behind the message that is not taken
  }
}

void ComputeCall::DescribeLocked(LogFields& fields) {
  const TimePoint now = environment().clock.Now();
  const Duration send = status().ok() ? now - computed_at_ : Duration(0);
  environment().metrics.CountRequest(tenant_->name(), operation_, status().code(), now - began_);
  if (status().ok()) environment().metrics.Observe(Stage::kSend, send);
  fields.emplace_back("request_id", request_id_);
  fields.emplace_back("tenant", tenant_->name());
  if (operation_.has_value()) fields.emplace_back("operation", std::string(Name(*operation_)));
  if (!problem_.empty()) fields.emplace_back("problem", problem_);
  fields.emplace_back("received_bytes", upload_ == nullptr ? int64_t{0} : upload_->received_bytes());
  fields.emplace_back("sent_bytes", sent_bytes_);
  fields.emplace_back("receive_seconds", ToSeconds(timings_.receive));
  fields.emplace_back("queue_seconds", ToSeconds(timings_.queue));
  fields.emplace_back("device_seconds", ToSeconds(timings_.compute));
  fields.emplace_back("send_seconds", ToSeconds(send));
}

void ComputeCall::DescribeLocked(CallView& view) {
  view.request_id = request_id_;
  view.tenant = tenant_->name();
  if (operation_.has_value()) view.operation = Name(*operation_);
  view.problem = problem_;
  if (request_ == nullptr) {
    view.state = "opening";
    view.waits_for = "the client: its spec has not come";
    return;
  }
  const RequestView request = compute_.scheduler.View(*request_);
  view.state = Name(request.state);
  switch (request.state) {
    case RequestState::kValidated: {
      const PoolUse memory = compute_.storage.pool.Use();
      view.waits_for = absl::StrCat("host memory: it needs ", request.host_bytes, " bytes, of ", memory.limit_bytes,
                                    " ", memory.reserved_bytes, " are held and ", memory.waiting, " requests wait");
      break;
    }
    case RequestState::kReceiving:
      view.waits_for = "the client: ";
      if (upload_ != nullptr) {
        absl::StrAppend(&view.waits_for, upload_->received_bytes(), " of ", upload_->total_bytes(), " ");
      }
      view.waits_for += "input bytes have come";
      break;
    case RequestState::kReady: {
      const QueueEstimate ahead = compute_.scheduler.Ahead();
      view.waits_for = absl::StrCat("its turn on a device: ", ahead.requests, " requests, with it, want ",
                                    ToSeconds(ahead.wait), " s of device time");
      break;
    }
    case RequestState::kRunning:
      view.waits_for =
          absl::StrCat(request.device, ": ", request.slices_done, " of ", request.slices, " slices are done");
      break;
    case RequestState::kSending:
      view.waits_for = absl::StrCat("the client to take its outputs: ", sent_bytes_, " bytes have been sent");
      break;
    case RequestState::kReleased:
      view.waits_for = "nothing";
      break;
  }
}

absl::Status ComputeCall::TakeMessageLocked() {
  switch (incoming_.payload_case()) {
    case v1::ComputeRequest::kSpec: {
      // The message may hold much that is not the spec (unknown fields): it goes before the call waits for its turn.
      v1::ComputeRequest message;
      message.Swap(&incoming_);
      return TakeSpecLocked(message.spec());
    }
    case v1::ComputeRequest::kChunk:
      return TakeChunkLocked(incoming_.chunk());
    case v1::ComputeRequest::PAYLOAD_NOT_SET:
      break;
  }
  return Error(Reason::kBadSpec, "a message with neither spec nor chunk");
}

absl::Status ComputeCall::TakeSpecLocked(const v1::ComputeSpec& spec) {
  if (spec_.has_value()) {
    return Error(Reason::kBadSpec, absl::StrCat("a second spec, after ", upload_->received_bytes(), " of ",
                                                upload_->total_bytes(), " input bytes"));
  }
  FLASHBOB_RETURN_IF_ERROR(CheckRequestId(spec.request_id()));
  if (!spec.request_id().empty()) request_id_ = spec.request_id();
  FLASHBOB_ASSIGN_OR_RETURN(operation_, OperationOf(spec));
  FLASHBOB_ASSIGN_OR_RETURN(spec_, ParseSpec(spec));
  problem_ = spec_->computation.problem().ToString();
  FLASHBOB_ASSIGN_OR_RETURN(StoredInputs stored, StoredLocked());
  FLASHBOB_ASSIGN_OR_RETURN(room_, RoomLocked());
  FLASHBOB_ASSIGN_OR_RETURN(
      Submitted submitted,
      compute_.scheduler.Submit({request_id_, spec_->computation, DeadlineOf(context(), environment().clock),
                                 shared_from_this(), tenant_, std::move(stored)}));
  request_ = std::move(submitted.request);
  if (submitted.admitted) AdmittedLocked();
  return absl::OkStatus();
}

absl::Status ComputeCall::TakeChunkLocked(const v1::TensorChunk& chunk) {
  if (!spec_.has_value()) return Error(Reason::kBadSpec, "a chunk before the spec");
  const bool was_complete = upload_->complete();
  FLASHBOB_RETURN_IF_ERROR(upload_->Accept(chunk));
  environment().metrics.AddBytesReceived(static_cast<int64_t>(chunk.data().size()));
  if (upload_->complete() && !was_complete) CompleteLocked();
  return absl::OkStatus();
}

absl::Status ComputeCall::UploadEndedLocked() {
  if (!spec_.has_value()) return Error(Reason::kBadSpec, "the stream ended before a spec came");
  return upload_->Ended();
}

void ComputeCall::AdmittedLocked() {
  upload_ = std::make_unique<Upload>(InputBytesLocked(), compute_.storage.max_chunk_bytes);
  accepted_due_ = compute_.scheduler.Ahead();
  if (upload_->complete()) {  // all that it needs is stored, or empty
    CompleteLocked();
    return;
  }
  // A brief answer holds it, where the rest comes before the next look at idle calls.
  if (!spec_->brief_answer) WriteLocked();
  ReadLocked();
}

void ComputeCall::CompleteLocked() {
  progress_at_ = environment().clock.Now();
  ready_ = request_;
}

void ComputeCall::ReadLocked() {
  reading_ = true;
  reading_since_ = environment().clock.Now();
  StartRead(&incoming_bytes_);
}

void ComputeCall::WriteLocked() {
  if (writing_ || ended()) return;
  grpc::WriteOptions options;
  if (FillNextLocked()) {
    WriteMessage(outgoing_, outgoing_bytes_);
    // Chunks follow at once: a packet less for a small result. Not so for the first message: gRPC would end a write
    // that carries the call's headers only once something else has it sent.
    if (outgoing_.has_result() && !outgoing_.result().has_accepted()) options.set_buffer_hint();
  } else if (download_ != nullptr && !download_->done()) {
    const Download::Chunk chunk = download_->Next();
    outgoing_bytes_ = ChunkOf<v1::ComputeResponse>(chunk);
    CountSentLocked(static_cast<int64_t>(chunk.data.size()));
  } else {
    return;
  }
  writing_ = true;
  writing_since_ = environment().clock.Now();
  const bool last = download_ != nullptr && !result_due_ && download_->done();
  if (!last) {
    StartWrite(&outgoing_bytes_, options);
    return;
  }
  // Memory stays reserved until gRPC has sent what it was given.
  MarkEndedLocked(absl::OkStatus());
  StartWriteAndFinish(&outgoing_bytes_, grpc::WriteOptions(), grpc::Status::OK);
}

bool ComputeCall::FillNextLocked() {
  if (accepted_due_.has_value() && !(result_due_ && spec_->brief_answer)) {
    FillAcceptedLocked(*outgoing_.mutable_accepted());
  } else if (result_due_) {
    result_due_ = false;
    FillResultLocked(*outgoing_.mutable_result());
  } else if (download_ == nullptr && progress_due_.has_value()) {
    v1::ComputeProgress& progress = *outgoing_.mutable_progress();
    progress.set_done_flops(*std::exchange(progress_due_, std::nullopt));
    progress.set_total_flops(spec_->computation.flops());
  } else {
    return false;
  }
  return true;
}

void ComputeCall::FillAcceptedLocked(v1::ComputeAccepted& accepted) {
  const QueueEstimate ahead = *std::exchange(accepted_due_, std::nullopt);
  accepted.set_request_id(request_id_);
  accepted.set_estimated_flops(spec_->computation.flops());
  accepted.set_queue_position(ahead.requests);
  SetDuration(*accepted.mutable_estimated_wait(), ahead.wait);
}

void ComputeCall::FillResultLocked(v1::ComputeResult& result) {
  if (accepted_due_.has_value()) FillAcceptedLocked(*result.mutable_accepted());
  for (size_t i = 0; i < spec_->outputs.size(); ++i) {
    v1::ResultTensor& tensor = *result.add_tensors();
    *tensor.mutable_tensor() = ToProto(spec_->computation.problem(), spec_->outputs[i]);
    tensor.set_handle(kept_[i]);
  }
  SetDuration(*result.mutable_timings()->mutable_receive(), timings_.receive);
  SetDuration(*result.mutable_timings()->mutable_queue(), timings_.queue);
  SetDuration(*result.mutable_timings()->mutable_compute(), timings_.compute);
  result.set_device(request_->device_name());
  if (spec_->brief_answer) CountSentLocked(download_->FillIn(result, kMaxBytesWithinResult));
}

void ComputeCall::CountSentLocked(int64_t bytes) {
  sent_bytes_ += bytes;
  environment().metrics.AddBytesSent(bytes);
}

absl::StatusOr<StoredInputs> ComputeCall::StoredLocked() {
  StoredInputs stored;
  for (size_t i = 0; i < spec_->inputs.size(); ++i) {
    if (spec_->handles[i].empty()) continue;
    const TensorName name = spec_->inputs[i];
    FLASHBOB_ASSIGN_OR_RETURN(const StoredTensor tensor, compute_.storage.store.Get(*tenant_, spec_->handles[i]));
    const AttentionProblem& problem = spec_->computation.problem();
    if (tensor.info.dtype != problem.DTypeOf(name) || tensor.info.shape != problem.ShapeOf(name)) {
      return Error(Reason::kBadSpec, absl::StrCat("input ", Name(name), " is ", Name(problem.DTypeOf(name)), " ",
                                                  ToString(problem.ShapeOf(name)), "; what its handle names is ",
                                                  Name(tensor.info.dtype), " ", ToString(tensor.info.shape)));
    }
    stored[static_cast<size_t>(name)] = tensor.bytes;
  }
  return stored;
}

absl::StatusOr<StoreRoom> ComputeCall::RoomLocked() {
  int64_t bytes = 0;
  for (size_t i = 0; i < spec_->outputs.size(); ++i) {
    if (!spec_->keep[i].has_value()) continue;
    const int64_t more = HostMemoryPool::BlockBytes(spec_->computation.problem().NumBytes(spec_->outputs[i]));
    // What is more than the store ever holds may not even be added up.
    if (more > compute_.storage.store.options().max_bytes - bytes) return compute_.storage.store.Reserve(more + bytes);
    bytes += more;
  }
  return compute_.storage.store.Reserve(bytes);
}

void ComputeCall::KeepOutputsLocked() {
  kept_.resize(spec_->outputs.size());
  for (size_t i = 0; i < spec_->outputs.size(); ++i) {
    if (!spec_->keep[i].has_value()) continue;
    const TensorName name = spec_->outputs[i];
    const AttentionProblem& problem = spec_->computation.problem();
    TensorStore::Item item;
    item.request_id = request_id_;
    item.info = {name, problem.DTypeOf(name), problem.ShapeOf(name)};
    std::tie(item.bytes, item.hold) = request_->TakeOutput(name);
    item.lease = *spec_->keep[i];
    kept_[i] = compute_.storage.store.Put(*tenant_, room_, std::move(item));
  }
}

std::vector<TensorBytes> ComputeCall::InputBytesLocked() const {
  std::vector<TensorBytes> tensors;
  for (size_t i = 0; i < spec_->inputs.size(); ++i) {
    const TensorName name = spec_->inputs[i];
    const bool stored = !spec_->handles[i].empty();  // nothing of it is sent
    tensors.push_back(
        {name, stored ? nullptr : request_->HostData(name), stored ? 0 : spec_->computation.problem().NumBytes(name)});
  }
  return tensors;
}

std::vector<TensorBytes> ComputeCall::OutputBytesLocked() const {
  std::vector<TensorBytes> tensors;
  for (size_t i = 0; i < spec_->outputs.size(); ++i) {
    const TensorName name = spec_->outputs[i];
    const bool kept = !kept_[i].empty();
    tensors.push_back(
        {name, kept ? nullptr : request_->HostData(name), kept ? 0 : spec_->computation.problem().NumBytes(name)});
  }
  return tensors;
}

}  // namespace flashbob::server
