// AttentionServiceImpl: flashbob.v1.AttentionService on gRPC's callback API; a reactor a call, one template for all.
#ifndef FLASHBOB_SERVER_SERVICE_ATTENTION_SERVICE_H_
#define FLASHBOB_SERVER_SERVICE_ATTENTION_SERVICE_H_

#include <atomic>
#include <string>

#include "flashbob/v1/attention_service.grpc.pb.h"
#include "server/auth/authenticator.h"
#include "server/service/call.h"
#include "server/service/compute_call.h"
#include "server/service/server_info.h"

namespace flashbob::server {

// Every method takes and gives bytes: see messages.h.
using RawAttentionService = v1::AttentionService::WithRawCallbackMethod_Compute<
    v1::AttentionService::WithRawCallbackMethod_PutTensors<v1::AttentionService::WithRawCallbackMethod_GetTensors<
        v1::AttentionService::WithRawCallbackMethod_DeleteTensors<
            v1::AttentionService::WithRawCallbackMethod_GetServerInfo<v1::AttentionService::Service>>>>>;

// Thread safety: any thread. All that the environments name, `authenticator` and `info` must outlive it.
class AttentionServiceImpl final : public RawAttentionService {
 public:
  AttentionServiceImpl(const CallEnvironment& environment, ComputeEnvironment compute,
                       const Authenticator& authenticator, const ServerInfo& info);

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Compute(grpc::CallbackServerContext* context) override;
  grpc::ServerReadReactor<grpc::ByteBuffer>* PutTensors(grpc::CallbackServerContext* context,
                                                        grpc::ByteBuffer* response) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* GetTensors(grpc::CallbackServerContext* context,
                                                         const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* DeleteTensors(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response) override;

 private:
  // Whose call it is; UNAUTHENTICATED where it does not say so rightly.
  absl::StatusOr<std::shared_ptr<Tenant>> TenantOf(const grpc::CallbackServerContext& context) const;
  // Names a request whose client did not: unique within the life of this server, and very likely beyond.
  std::string NewRequestId();

  const CallEnvironment environment_;
  const ComputeEnvironment compute_;
  const Authenticator& authenticator_;
  const ServerInfo& info_;
  const std::string id_prefix_;
  std::atomic<int64_t> next_id_ = 1;
};

}  // namespace flashbob::server

#endif  // FLASHBOB_SERVER_SERVICE_ATTENTION_SERVICE_H_
