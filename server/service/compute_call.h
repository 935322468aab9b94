// ComputeCall: the reactor of one Compute stream.
//
//   client                         call                                      scheduler
//   spec            ->             ParseSpec               -> Submit
//                   <- accepted    host memory is there    <- (OnAdmitted)
//   chunks          ->             Upload, into that memory
//                                  every byte is there     -> Ready
//                   <- progress    <= 4 a second           <- OnProgress
//                   <- result      Download                <- OnComputed
//                   <- chunks, OK                          -> Release
//
// A read is outstanding only while there is a place for what it brings: before the spec, and once memory is reserved.
// Until then gRPC's flow control holds the client back.
//
// A small answer may be one message: a result that holds `accepted` and the outputs. For that `accepted` is held back:
// while inputs come, until the next look at idle calls; then until the request waits for a device.
#ifndef FLASHBOB_SERVER_SERVICE_COMPUTE_CALL_H_
#define FLASHBOB_SERVER_SERVICE_COMPUTE_CALL_H_

#include <grpcpp/support/server_callback.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "flashbob/v1/attention_service.pb.h"
#include "server/scheduler/scheduler.h"
#include "server/service/call.h"
#include "server/service/download.h"
#include "server/service/spec.h"
#include "server/service/storage.h"
#include "server/service/upload.h"

namespace flashbob::server {

// What Compute calls share besides CallEnvironment.
struct ComputeEnvironment {
  Scheduler& scheduler;
  Storage storage;
};

class ComputeCall final : public Call<grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>>,
                          public RequestListener,
                          public std::enable_shared_from_this<ComputeCall> {
 public:
  // `own_request_id` names the request where its client does not.
  ComputeCall(const CallEnvironment& environment, grpc::CallbackServerContext& context,
              const ComputeEnvironment& compute, std::shared_ptr<Tenant> tenant, std::string own_request_id);

  // Call once, when the call is registered.
  void Start();

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;

  void OnAdmitted() override;
  void OnProgress(double done_flops) override;
  void OnComputed(const absl::Status& status) override;

 private:
  void ReleaseLocked() override FLASHBOB_REQUIRES(mutex_);
  void CutIfIdleLocked(TimePoint now) override FLASHBOB_REQUIRES(mutex_);
  void DescribeLocked(LogFields& fields) override FLASHBOB_REQUIRES(mutex_);
  void DescribeLocked(CallView& view) override FLASHBOB_REQUIRES(mutex_);

  absl::Status TakeMessageLocked() FLASHBOB_REQUIRES(mutex_);
  absl::Status TakeSpecLocked(const v1::ComputeSpec& spec) FLASHBOB_REQUIRES(mutex_);
  absl::Status TakeChunkLocked(const v1::TensorChunk& chunk) FLASHBOB_REQUIRES(mutex_);
  absl::Status UploadEndedLocked() FLASHBOB_REQUIRES(mutex_);
  void AdmittedLocked() FLASHBOB_REQUIRES(mutex_);
  void CompleteLocked() FLASHBOB_REQUIRES(mutex_);
  // Hands a request whose inputs are all there on; it may be computed within.
  void PassOn() FLASHBOB_EXCLUDES(mutex_);
  void ReadLocked() FLASHBOB_REQUIRES(mutex_);
  // Writes the next message, where there is one and no other is being written.
  void WriteLocked() FLASHBOB_REQUIRES(mutex_);
  // Whether `outgoing_` is now what comes before the chunks.
  bool FillNextLocked() FLASHBOB_REQUIRES(mutex_);
  void FillAcceptedLocked(v1::ComputeAccepted& accepted) FLASHBOB_REQUIRES(mutex_);
  void FillResultLocked(v1::ComputeResult& result) FLASHBOB_REQUIRES(mutex_);
  void CountSentLocked(int64_t bytes) FLASHBOB_REQUIRES(mutex_);
  // Finds the inputs that lie in the store.
  absl::StatusOr<StoredInputs> StoredLocked() FLASHBOB_REQUIRES(mutex_);
  // Makes sure that the outputs that are to be kept can be.
  absl::StatusOr<StoreRoom> RoomLocked() FLASHBOB_REQUIRES(mutex_);
  void KeepOutputsLocked() FLASHBOB_REQUIRES(mutex_);
  std::vector<TensorBytes> InputBytesLocked() const FLASHBOB_REQUIRES(mutex_);
  std::vector<TensorBytes> OutputBytesLocked() const FLASHBOB_REQUIRES(mutex_);

  const ComputeEnvironment compute_;
  const std::shared_ptr<Tenant> tenant_;

  // The bytes that are being read or written belong to gRPC while `reading_` or `writing_`.
  grpc::ByteBuffer incoming_bytes_;
  grpc::ByteBuffer outgoing_bytes_;
  v1::ComputeRequest incoming_;   // the last one read
  v1::ComputeResponse outgoing_;  // the next one to write, unless it is a chunk
  bool reading_ FLASHBOB_GUARDED_BY(mutex_) = false;
  bool writing_ FLASHBOB_GUARDED_BY(mutex_) = false;
  TimePoint reading_since_ FLASHBOB_GUARDED_BY(mutex_);
  TimePoint writing_since_ FLASHBOB_GUARDED_BY(mutex_);

  std::string request_id_ FLASHBOB_GUARDED_BY(mutex_);
  std::optional<Operation> operation_ FLASHBOB_GUARDED_BY(mutex_);
  std::string problem_ FLASHBOB_GUARDED_BY(mutex_);
  std::optional<ParsedSpec> spec_ FLASHBOB_GUARDED_BY(mutex_);
  StoreRoom room_ FLASHBOB_GUARDED_BY(mutex_);                      // for what is to be kept
  std::vector<std::string> kept_ FLASHBOB_GUARDED_BY(mutex_);       // handles of the outputs, empty where they are sent
  std::shared_ptr<Request> request_ FLASHBOB_GUARDED_BY(mutex_);    // from its submission until it is released
  std::shared_ptr<Request> ready_ FLASHBOB_GUARDED_BY(mutex_);      // to be passed on
  std::unique_ptr<Upload> upload_ FLASHBOB_GUARDED_BY(mutex_);      // once memory is there
  std::unique_ptr<Download> download_ FLASHBOB_GUARDED_BY(mutex_);  // once the outputs are there
  RequestTimings timings_ FLASHBOB_GUARDED_BY(mutex_);
  TimePoint computed_at_ FLASHBOB_GUARDED_BY(mutex_);
  TimePoint began_ FLASHBOB_GUARDED_BY(mutex_);
  int64_t sent_bytes_ FLASHBOB_GUARDED_BY(mutex_) = 0;

  // What is to be written next, in this order; chunks of `download_` come after the result.
  std::optional<QueueEstimate> accepted_due_ FLASHBOB_GUARDED_BY(mutex_);  // with what is ahead of the request
  std::optional<double> progress_due_ FLASHBOB_GUARDED_BY(mutex_);         // done FLOPs
  bool result_due_ FLASHBOB_GUARDED_BY(mutex_) = false;
  TimePoint progress_at_ FLASHBOB_GUARDED_BY(mutex_);  // of the last one, or when the upload was complete
};

}  // namespace flashbob::server

#endif  // FLASHBOB_SERVER_SERVICE_COMPUTE_CALL_H_
