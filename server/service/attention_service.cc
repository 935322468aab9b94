#include "server/service/attention_service.h"

#include <optional>
#include <random>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "server/service/get_tensors_call.h"
#include "server/service/messages.h"
#include "server/service/put_tensors_call.h"

namespace flashbob::server {
namespace {

// Starts a call that is answered at once with `status`.
template <class Reactor>
Reactor* Answer(const CallEnvironment& environment, grpc::CallbackServerContext& context, Method method,
                const absl::Status& status) {
  auto* const call = StartCall<ImmediateCall<Reactor>>(environment, context, method);
  call->End(status);
  return call;
}

template <class Message>
absl::StatusOr<Message> Read(const grpc::ByteBuffer& bytes) {
  grpc::ByteBuffer own = bytes;  // shares the bytes
  Message message;
  FLASHBOB_RETURN_IF_ERROR(ReadMessage(own, message));
  return message;
}

}  // namespace

AttentionServiceImpl::AttentionServiceImpl(const CallEnvironment& environment, ComputeEnvironment compute,
                                           const Authenticator& authenticator, const ServerInfo& info)
    : environment_(environment),
      compute_(std::move(compute)),
      authenticator_(authenticator),
      info_(info),
      id_prefix_(absl::StrFormat("server-%08x-", std::random_device()())) {}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* AttentionServiceImpl::Compute(
    grpc::CallbackServerContext* context) {
  using Reactor = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;
  absl::StatusOr<std::shared_ptr<Tenant>> tenant = TenantOf(*context);
  if (!tenant.ok()) return Answer<Reactor>(environment_, *context, Method::kCompute, tenant.status());
  auto* const call = StartCall<ComputeCall>(environment_, *context, compute_, *std::move(tenant), NewRequestId());
  call->Start();
  return call;
}

grpc::ServerReadReactor<grpc::ByteBuffer>* AttentionServiceImpl::PutTensors(grpc::CallbackServerContext* context,
                                                                            grpc::ByteBuffer* response) {
  using Reactor = grpc::ServerReadReactor<grpc::ByteBuffer>;
  absl::StatusOr<std::shared_ptr<Tenant>> tenant = TenantOf(*context);
  if (!tenant.ok()) return Answer<Reactor>(environment_, *context, Method::kPutTensors, tenant.status());
  auto* const call = StartCall<PutTensorsCall>(environment_, *context, compute_.storage, *std::move(tenant),
                                               NewRequestId(), *response);
  call->Start();
  return call;
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* AttentionServiceImpl::GetTensors(grpc::CallbackServerContext* context,
                                                                             const grpc::ByteBuffer* request) {
  using Reactor = grpc::ServerWriteReactor<grpc::ByteBuffer>;
  absl::StatusOr<std::shared_ptr<Tenant>> tenant = TenantOf(*context);
  if (!tenant.ok()) return Answer<Reactor>(environment_, *context, Method::kGetTensors, tenant.status());
  auto* const call = StartCall<GetTensorsCall>(environment_, *context, compute_.storage, *std::move(tenant));
  call->Start(Read<v1::GetTensorsRequest>(*request));
  return call;
}

grpc::ServerUnaryReactor* AttentionServiceImpl::DeleteTensors(grpc::CallbackServerContext* context,
                                                              const grpc::ByteBuffer* request,
                                                              grpc::ByteBuffer* response) {
  const auto answer = [&]() -> absl::Status {
    FLASHBOB_ASSIGN_OR_RETURN(const std::shared_ptr<Tenant> tenant, TenantOf(*context));
    FLASHBOB_ASSIGN_OR_RETURN(const v1::DeleteTensorsRequest asked, Read<v1::DeleteTensorsRequest>(*request));
    v1::DeleteTensorsResponse deleted;
    deleted.set_deleted(compute_.storage.store.Delete(*tenant, {asked.handles().begin(), asked.handles().end()}));
    WriteMessage(deleted, *response);
    return absl::OkStatus();
  };
  return Answer<grpc::ServerUnaryReactor>(environment_, *context, Method::kDeleteTensors, answer());
}

grpc::ServerUnaryReactor* AttentionServiceImpl::GetServerInfo(grpc::CallbackServerContext* context,
                                                              const grpc::ByteBuffer* request,
                                                              grpc::ByteBuffer* response) {
  const auto answer = [&]() -> absl::Status {
    FLASHBOB_ASSIGN_OR_RETURN(const std::shared_ptr<Tenant> tenant, TenantOf(*context));
    FLASHBOB_RETURN_IF_ERROR(Read<v1::GetServerInfoRequest>(*request).status());
    WriteMessage(info_.Now(*tenant), *response);
    return absl::OkStatus();
  };
  return Answer<grpc::ServerUnaryReactor>(environment_, *context, Method::kGetServerInfo, answer());
}

absl::StatusOr<std::shared_ptr<Tenant>> AttentionServiceImpl::TenantOf(
    const grpc::CallbackServerContext& context) const {
  Credentials credentials;
  const auto header = context.client_metadata().find("authorization");
  if (header != context.client_metadata().end()) {
    credentials.authorization = std::string_view(header->second.data(), header->second.size());
  }
  const std::shared_ptr<const grpc::AuthContext> peer = context.auth_context();
  if (peer != nullptr && peer->IsPeerAuthenticated()) {
    for (const grpc::string_ref& name : peer->GetPeerIdentity()) {
      credentials.certificate_names.emplace_back(name.data(), name.size());
    }
  }
  return authenticator_.Authenticate(credentials);
}

std::string AttentionServiceImpl::NewRequestId() { return absl::StrCat(id_prefix_, next_id_.fetch_add(1)); }

}  // namespace flashbob::server
