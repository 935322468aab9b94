// CallbackThreads: serves with fewer of gRPC's callback threads than it starts, always or while they have time.
//
// gRPC 1.51 starts one for every two cores, 2 to 16 in a process, whatever it is told. With 2 instead of 8 an empty
// call took half as long on one machine, and 64 clients got two thirds of the rate; server/README.md has the figures.
// There is no setting, but all callbacks of a process run on them, those of its own calls too: those that are too many
// are kept in a callback that does not return.
#ifndef FLASHBOB_SERVER_SERVICE_CALLBACK_THREADS_H_
#define FLASHBOB_SERVER_SERVICE_CALLBACK_THREADS_H_

#include <grpcpp/channel.h>
#include <time.h>

#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "server/base/clock.h"

namespace flashbob::server {

// They are the process's: make at most one, before its servers, and destroy it after them. Thread safety: one thread at
// a time, no callback of gRPC's.
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

  // Lets all serve where `serving` threads are busy nearly all the time, or have not come to a callback since the last
  // look, and leaves it at `serving` again once they have had time for a while. Fewer threads hand over less to each
  // other, which a call alone waits for; many calls want them all. To be called several times a second; never called,
  // the limit stays. A server cannot tell by its calls in flight: it takes in no more of them than its threads find
  // time for.
  void Look(const Clock& clock);

  // What Look goes by: how many threads' time was used since the last call, by all of them together (in the first one
  // 0), and whether a callback asked for in an earlier call has not begun yet. And what it does then.
  double Busy(const Clock& clock);
  bool Late();
  void Adapt(double busy, bool late, TimePoint now);

 private:
  class Kept;

  explicit CallbackThreads(int serving);
  // Keeps all but those that are to serve, as soon as they have nothing else to do.
  void KeepTheRest();
  void LetAllServe();

  // What all have used since they began.
  Duration Used() const;

  const int serving_;
  const std::shared_ptr<grpc::Channel> channel_;
  std::vector<std::unique_ptr<Kept>> kept_;  // go before the channel
  std::unique_ptr<Kept> asked_;
  // One a thread, none where nothing is limited. The channel keeps the threads, and so their clocks.
  std::vector<clockid_t> clocks_;
  Duration used_ = {};
  std::optional<TimePoint> looked_at_;
  TimePoint busy_at_ = {};
};

}  // namespace flashbob::server

#endif  // FLASHBOB_SERVER_SERVICE_CALLBACK_THREADS_H_
