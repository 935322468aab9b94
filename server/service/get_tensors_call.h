// GetTensorsCall: the reactor of one GetTensors stream: the header, then the chunks. It keeps the tensors' bytes until
// the last is sent.
#ifndef FLASHBOB_SERVER_SERVICE_GET_TENSORS_CALL_H_
#define FLASHBOB_SERVER_SERVICE_GET_TENSORS_CALL_H_

#include <grpcpp/support/server_callback.h>

#include <memory>
#include <vector>

#include "flashbob/v1/attention_service.pb.h"
#include "server/service/call.h"
#include "server/service/download.h"
#include "server/service/storage.h"

namespace flashbob::server {

class GetTensorsCall final : public Call<grpc::ServerWriteReactor<grpc::ByteBuffer>> {
 public:
  GetTensorsCall(const CallEnvironment& environment, grpc::CallbackServerContext& context, const Storage& storage,
                 std::shared_ptr<Tenant> tenant);

  // Call once, when the call is registered.
  void Start(const absl::StatusOr<v1::GetTensorsRequest>& request);
  void OnWriteDone(bool ok) override;

 private:
  void ReleaseLocked() override FLASHBOB_REQUIRES(mutex_);
  void CutIfIdleLocked(TimePoint now) override FLASHBOB_REQUIRES(mutex_);
  void DescribeLocked(LogFields& fields) override FLASHBOB_REQUIRES(mutex_);
  void DescribeLocked(CallView& view) override FLASHBOB_REQUIRES(mutex_);
  absl::Status OpenLocked(const v1::GetTensorsRequest& request) FLASHBOB_REQUIRES(mutex_);
  void WriteLocked() FLASHBOB_REQUIRES(mutex_);

  const Storage storage_;
  const std::shared_ptr<Tenant> tenant_;
  v1::GetTensorsResponse header_;
  grpc::ByteBuffer outgoing_bytes_;  // gRPC's while a write is outstanding
  bool writing_ FLASHBOB_GUARDED_BY(mutex_) = false;
  TimePoint writing_since_ FLASHBOB_GUARDED_BY(mutex_);
  int64_t sent_bytes_ FLASHBOB_GUARDED_BY(mutex_) = 0;
  std::vector<StoredTensor> tensors_ FLASHBOB_GUARDED_BY(mutex_);
  std::unique_ptr<Download> download_ FLASHBOB_GUARDED_BY(mutex_);
};

}  // namespace flashbob::server

#endif  // FLASHBOB_SERVER_SERVICE_GET_TENSORS_CALL_H_
