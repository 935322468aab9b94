// HangWatch: finds work that a device was given and does not end.
//
// It counts how often it looked, not time: a process that was stopped for an hour, or a machine that was suspended, has
// not looked meanwhile. Thread safety: any thread.
#ifndef FLASHBOB_SERVER_SCHEDULER_HANG_WATCH_H_
#define FLASHBOB_SERVER_SCHEDULER_HANG_WATCH_H_

#include <cstdint>
#include <map>

#include "kernels/base/mutex.h"

namespace flashbob::server {

class HangWatch {
 public:
  // Work that is still under way when it has been looked at so often hangs.
  explicit HangWatch(int looks) : looks_(looks) {}

  // While it lives, the device is at work.
  class Work {
   public:
    explicit Work(HangWatch& watch) : watch_(watch), ticket_(watch.Begin()) {}
    ~Work() { watch_.End(ticket_); }
    Work(const Work&) = delete;
    Work& operator=(const Work&) = delete;

   private:
    HangWatch& watch_;
    const uint64_t ticket_;
  };

  // Whether some work hangs; said once of each.
  bool Look() FLASHBOB_EXCLUDES(mutex_);

 private:
  uint64_t Begin() FLASHBOB_EXCLUDES(mutex_);
  void End(uint64_t ticket) FLASHBOB_EXCLUDES(mutex_);

  const int looks_;
  Mutex mutex_;
  uint64_t next_ FLASHBOB_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, int> looked_at_ FLASHBOB_GUARDED_BY(mutex_);  // how often, by ticket of work under way
};

}  // namespace flashbob::server

#endif  // FLASHBOB_SERVER_SCHEDULER_HANG_WATCH_H_
