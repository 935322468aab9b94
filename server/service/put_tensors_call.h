// PutTensorsCall: the reactor of one PutTensors stream. Nothing is read beyond the spec before quota, room in the store
// and host memory are held; where there is none now, the call is refused.
#ifndef FLASHBOB_SERVER_SERVICE_PUT_TENSORS_CALL_H_
#define FLASHBOB_SERVER_SERVICE_PUT_TENSORS_CALL_H_

#include <grpcpp/support/server_callback.h>

#include <memory>
#include <string>
#include <vector>

#include "flashbob/v1/attention_service.pb.h"
#include "server/service/call.h"
#include "server/service/storage.h"
#include "server/service/upload.h"

namespace flashbob::server {

class PutTensorsCall final : public Call<grpc::ServerReadReactor<grpc::ByteBuffer>> {
 public:
  // `own_request_id` names the request where its client does not. `response` is gRPC's.
  PutTensorsCall(const CallEnvironment& environment, grpc::CallbackServerContext& context, const Storage& storage,
                 std::shared_ptr<Tenant> tenant, std::string own_request_id, grpc::ByteBuffer& response);

  // Call once, when the call is registered.
  void Start();
  void OnReadDone(bool ok) override;

 private:
  void ReleaseLocked() override FLASHBOB_REQUIRES(mutex_);
  void CutIfIdleLocked(TimePoint now) override FLASHBOB_REQUIRES(mutex_);
  void DescribeLocked(LogFields& fields) override FLASHBOB_REQUIRES(mutex_);
  void DescribeLocked(CallView& view) override FLASHBOB_REQUIRES(mutex_);

  void ReadLocked() FLASHBOB_REQUIRES(mutex_);
  absl::Status TakeMessageLocked() FLASHBOB_REQUIRES(mutex_);
  absl::Status TakeSpecLocked(const v1::PutTensorsSpec& spec) FLASHBOB_REQUIRES(mutex_);
  // The client has sent all.
  absl::Status StoreLocked() FLASHBOB_REQUIRES(mutex_);

  const Storage storage_;
  const std::shared_ptr<Tenant> tenant_;
  grpc::ByteBuffer incoming_bytes_;  // gRPC's while a read is outstanding
  v1::PutTensorsRequest incoming_;   // the last one read
  grpc::ByteBuffer& response_;
  bool reading_ FLASHBOB_GUARDED_BY(mutex_) = false;
  TimePoint reading_since_ FLASHBOB_GUARDED_BY(mutex_);
  std::string request_id_ FLASHBOB_GUARDED_BY(mutex_);
  std::vector<TensorStore::Item> items_ FLASHBOB_GUARDED_BY(mutex_);
  StoreRoom room_ FLASHBOB_GUARDED_BY(mutex_);
  Reservation transit_ FLASHBOB_GUARDED_BY(mutex_);             // for the messages that carry the bytes
  std::unique_ptr<Upload> upload_ FLASHBOB_GUARDED_BY(mutex_);  // once memory is there
};

}  // namespace flashbob::server

#endif  // FLASHBOB_SERVER_SERVICE_PUT_TENSORS_CALL_H_
