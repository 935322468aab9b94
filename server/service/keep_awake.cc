#include "server/service/keep_awake.h"

#include <grpcpp/client_context.h>
#include <grpcpp/support/byte_buffer.h>

#include "server/service/health.pb.h"
#include "server/service/messages.h"

namespace flashbob::server {

struct KeepAwake::Nudging {
  grpc::ClientContext context;
  grpc::ByteBuffer request;
  grpc::ByteBuffer response;
};

KeepAwake::KeepAwake(const std::shared_ptr<grpc::Channel>& to_itself)
    : stub_(to_itself), ticker_(std::make_unique<Ticker>(kInterval, [this] { Nudge(); })) {}

KeepAwake::~KeepAwake() {
  ticker_.reset();
  MutexLock lock(mutex_);
  while (under_way_) ended_.Wait(mutex_);
}

void KeepAwake::Nudge() {
  {
    MutexLock lock(mutex_);
    if (under_way_) return;
    under_way_ = true;
  }
  nudging_ = std::make_unique<Nudging>();
  nudging_->context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(1));
  WriteMessage(grpc::health::v1::HealthCheckRequest(), nudging_->request);
  stub_.UnaryCall(&nudging_->context, "/grpc.health.v1.Health/Check", grpc::StubOptions(), &nudging_->request,
                  &nudging_->response, [this](const grpc::Status&) { Ended(); });
}

void KeepAwake::Ended() {
  MutexLock lock(mutex_);
  under_way_ = false;
  ended_.NotifyAll();
}

}  // namespace flashbob::server
