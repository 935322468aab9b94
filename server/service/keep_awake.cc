#include "server/service/keep_awake.h"

#include <grpcpp/client_context.h>
#include <grpcpp/support/byte_buffer.h>

#include "server/service/health.pb.h"
#include "server/service/messages.h"

namespace flashbob::server {
namespace {

struct Nudging {
  grpc::ClientContext context;
  grpc::ByteBuffer request;
  grpc::ByteBuffer response;
};

}  // namespace

KeepAwake::KeepAwake(const std::shared_ptr<grpc::Channel>& to_itself)
    : stub_(to_itself), ticker_(kInterval, [this] { Nudge(); }) {}

void KeepAwake::Nudge() {
  const auto call = std::make_shared<Nudging>();
  call->context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(1));
  WriteMessage(grpc::health::v1::HealthCheckRequest(), call->request);
  stub_.UnaryCall(&call->context, "/grpc.health.v1.Health/Check", grpc::StubOptions(), &call->request, &call->response,
                  [call](const grpc::Status&) {});
}

}  // namespace flashbob::server
