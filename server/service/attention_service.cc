#include "server/service/attention_service.h"

#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace flashbob::server {
namespace {

absl::Status NoStore() {
  return Error(Reason::kUnsupportedProblem,
               "this server keeps no tensors yet; send inputs inline with Compute and take outputs inline");
}

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
                                           const ServerInfo& info)
    : environment_(environment),
      compute_(std::move(compute)),
      info_(info),
      id_prefix_(absl::StrFormat("server-%08x-", std::random_device()())) {}

grpc::ServerBidiReactor<v1::ComputeRequest, v1::ComputeResponse>* AttentionServiceImpl::Compute(
    grpc::CallbackServerContext* context) {
  auto* const call = StartCall<ComputeCall>(environment_, *context, compute_, NewRequestId());
  call->Start();
  return call;
}

grpc::ServerReadReactor<v1::PutTensorsRequest>* AttentionServiceImpl::PutTensors(grpc::CallbackServerContext* context,
                                                                                 v1::PutTensorsResponse*) {
  return Answer<grpc::ServerReadReactor<v1::PutTensorsRequest>>(environment_, *context, Method::kPutTensors, NoStore());
}

grpc::ServerWriteReactor<v1::GetTensorsResponse>* AttentionServiceImpl::GetTensors(grpc::CallbackServerContext* context,
                                                                                   const v1::GetTensorsRequest*) {
  return Answer<grpc::ServerWriteReactor<v1::GetTensorsResponse>>(environment_, *context, Method::kGetTensors,
                                                                  NoStore());
}

grpc::ServerUnaryReactor* AttentionServiceImpl::DeleteTensors(grpc::CallbackServerContext* context,
                                                              const v1::DeleteTensorsRequest*,
                                                              v1::DeleteTensorsResponse*) {
  return Answer<grpc::ServerUnaryReactor>(environment_, *context, Method::kDeleteTensors, NoStore());
}

grpc::ServerUnaryReactor* AttentionServiceImpl::GetServerInfo(grpc::CallbackServerContext* context,
                                                              const v1::GetServerInfoRequest*,
                                                              v1::GetServerInfoResponse* response) {
  *response = info_.Now();
  return Answer<grpc::ServerUnaryReactor>(environment_, *context, Method::kGetServerInfo, absl::OkStatus());
}

std::string AttentionServiceImpl::NewRequestId() { return absl::StrCat(id_prefix_, next_id_.fetch_add(1)); }

}  // namespace flashbob::server
