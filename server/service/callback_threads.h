// CallbackThreads: serves with fewer of gRPC's callback threads than it starts.
//
// gRPC 1.51 starts one for every two cores, 2 to 16 in a process, whatever it is told. With 2 instead of 8 an empty
// call took half as long on one machine, by a gRPC that was told of fewer cores; server/README.md has the figures.
// There is no setting, but all callbacks of a process run on them, those of its own calls too: those that are too many
// are kept in a callback that does not return.
#ifndef FLASHBOB_SERVER_SERVICE_CALLBACK_THREADS_H_
#define FLASHBOB_SERVER_SERVICE_CALLBACK_THREADS_H_

#include <grpcpp/channel.h>

#include <memory>
#include <vector>

#include "absl/status/statusor.h"

namespace flashbob::server {

// They are the process's: make at most one, before its servers, and destroy it after them. Thread safety: construct and
// destroy on one thread, no callback of gRPC's.
class CallbackThreads {
 public:
  // How many gRPC starts on this machine.
  static int Started();

  // Leaves `serving` >= 1 of them to serve, all where there are no more. Fails where gRPC does not run as many
  // callbacks at once as it is expected to.
  static absl::StatusOr<std::unique_ptr<CallbackThreads>> Limit(int serving);
  ~CallbackThreads();
  CallbackThreads(const CallbackThreads&) = delete;
  CallbackThreads& operator=(const CallbackThreads&) = delete;

 private:
  class Kept;

  CallbackThreads();
  // False where no callback began to run in time.
  bool KeepOne();

  const std::shared_ptr<grpc::Channel> channel_;
  std::vector<std::unique_ptr<Kept>> kept_;  // go before the channel
};

}  // namespace flashbob::server

#endif  // FLASHBOB_SERVER_SERVICE_CALLBACK_THREADS_H_
