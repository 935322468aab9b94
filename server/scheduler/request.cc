#include "server/scheduler/request.h"

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

}  // namespace flashbob::server
