#include "server/scheduler/request.h"

#include "server/scheduler/part.h"

namespace flashbob::server {

const char* Name(RequestState state) {
  switch (state) {
    case RequestState::kValidated:
      return "validated";
    case RequestState::kReceiving:
      return "receiving";
    case RequestState::kReady:
      return "ready";
    case RequestState::kRunning:
      return "running";
    case RequestState::kSending:
      return "sending";
    case RequestState::kReleased:
      return "released";
  }
  return "unknown";
}

bool MayMove(RequestState from, RequestState to) {
  if (from == RequestState::kReleased) return false;
  return to == RequestState::kReleased || static_cast<int>(to) == static_cast<int>(from) + 1;
}

Request::Request(std::string id, std::unique_ptr<const Plan> plan, TimePoint received, TimePoint deadline)
    : id_(std::move(id)), plan_(std::move(plan)), received_(received), deadline_(deadline) {}

Request::~Request() = default;

std::pair<HostBuffer, TenantHold> Request::TakeOutput(TensorName name) {
  HostBuffer& buffer = memory_.tensors[static_cast<size_t>(name)];
  TenantHold hold = hold_.Split(HostMemoryPool::BlockBytes(buffer.bytes()));
  return {std::move(buffer), std::move(hold)};
}

}  // namespace flashbob::server
