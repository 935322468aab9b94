// KeepAwake: keeps gRPC's callback threads from dozing off.
//
// After a second without an event those of gRPC 1.51 sleep for a tenth of a second at a time, and a call that comes
// then waits for them: up to 100 ms for a request that takes less than one. A call of the server's own, of its health
// service over a channel within the process, a few times a second is event enough; README.md has the figures.
#ifndef FLASHBOB_SERVER_SERVICE_KEEP_AWAKE_H_
#define FLASHBOB_SERVER_SERVICE_KEEP_AWAKE_H_

#include <grpcpp/channel.h>
#include <grpcpp/generic/generic_stub.h>

#include <chrono>
#include <memory>

#include "kernels/base/mutex.h"
#include "server/base/ticker.h"

namespace flashbob::server {

// Destroy it before the server of its channel. Thread safety: construct and destroy on one thread.
class KeepAwake {
 public:
  // Well below the second after which a thread dozes off, whichever of them took the last event.
  static constexpr std::chrono::milliseconds kInterval{250};

  explicit KeepAwake(const std::shared_ptr<grpc::Channel>& to_itself);
  // Waits for a call that is under way: the last reference to the channel must not go on gRPC's thread, which would
  // then join itself.
  ~KeepAwake();

 private:
  struct Nudging;
  void Nudge();
  void Ended();

  grpc::GenericStub stub_;
  Mutex mutex_;
  CondVar ended_;
  bool under_way_ FLASHBOB_GUARDED_BY(mutex_) = false;
  std::unique_ptr<Nudging> nudging_;  // gRPC's while it is under way, else the ticker's
  std::unique_ptr<Ticker> ticker_;
};

}  // namespace flashbob::server

#endif  // FLASHBOB_SERVER_SERVICE_KEEP_AWAKE_H_
