#include "server/service/attention_service.h"

#include <optional>
#include <random>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/service/get_tensors_call.h"
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

}  // namespace

AttentionServiceImpl::AttentionServiceImpl(const CallEnvironment& environment, ComputeEnvironment compute,
                                           const Authenticator& authenticator, const ServerInfo& info)
    : environment_(environment),
      compute_(std::move(compute)),
      authenticator_(authenticator),
      info_(info),
      id_prefix_(absl::StrFormat("server-%08x-", std::random_device()())) {}

grpc::ServerBidiReactor<v1::ComputeRequest, v1::ComputeResponse>* AttentionServiceImpl::Compute(
    grpc::CallbackServerContext* context) {
  using Reactor = grpc::ServerBidiReactor<v1::ComputeRequest, v1::ComputeResponse>;
  absl::StatusOr<std::shared_ptr<Tenant>> tenant = TenantOf(*context);
  if (!tenant.ok()) return Answer<Reactor>(environment_, *context, Method::kCompute, tenant.status());
  auto* const call = StartCall<ComputeCall>(environment_, *context, compute_, *std::move(tenant), NewRequestId());
  call->Start();
  return call;
}

grpc::ServerReadReactor<v1::PutTensorsRequest>* AttentionServiceImpl::PutTensors(grpc::CallbackServerContext* context,
                                                                                 v1::PutTensorsResponse* response) {
  using Reactor = grpc::ServerReadReactor<v1::PutTensorsRequest>;
  absl::StatusOr<std::shared_ptr<Tenant>> tenant = TenantOf(*context);
  if (!tenant.ok()) return Answer<Reactor>(environment_, *context, Method::kPutTensors, tenant.status());
  auto* const call = StartCall<PutTensorsCall>(environment_, *context, compute_.storage, *std::move(tenant),
                                               NewRequestId(), *response);
  call->Start();
  return call;
}

grpc::ServerWriteReactor<v1::GetTensorsResponse>* AttentionServiceImpl::GetTensors(
    grpc::CallbackServerContext* context, const v1::GetTensorsRequest* request) {
  using Reactor = grpc::ServerWriteReactor<v1::GetTensorsResponse>;
  absl::StatusOr<std::shared_ptr<Tenant>> tenant = TenantOf(*context);
  if (!tenant.ok()) return Answer<Reactor>(environment_, *context, Method::kGetTensors, tenant.status());
  auto* const call = StartCall<GetTensorsCall>(environment_, *context, compute_.storage, *std::move(tenant));
  call->Start(*request);
  return call;
}

grpc::ServerUnaryReactor* AttentionServiceImpl::DeleteTensors(grpc::CallbackServerContext* context,
                                                              const v1::DeleteTensorsRequest* request,
                                                              v1::DeleteTensorsResponse* response) {
  const absl::StatusOr<std::shared_ptr<Tenant>> tenant = TenantOf(*context);
  if (tenant.ok()) {
    response->set_deleted(
        compute_.storage.store.Delete(**tenant, {request->handles().begin(), request->handles().end()}));
  }
  return Answer<grpc::ServerUnaryReactor>(environment_, *context, Method::kDeleteTensors, tenant.status());
}

grpc::ServerUnaryReactor* AttentionServiceImpl::GetServerInfo(grpc::CallbackServerContext* context,
                                                              const v1::GetServerInfoRequest*,
                                                              v1::GetServerInfoResponse* response) {
  const absl::StatusOr<std::shared_ptr<Tenant>> tenant = TenantOf(*context);
  if (tenant.ok()) *response = info_.Now(**tenant);
  return Answer<grpc::ServerUnaryReactor>(environment_, *context, Method::kGetServerInfo, tenant.status());
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
