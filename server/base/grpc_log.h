// GrpcLog: what gRPC says of itself, in the server's log instead of as it likes on stderr, and no more of it than
// people read: whoever can connect can have gRPC say that a handshake failed, as often as he tries.
#ifndef FLASHBOB_SERVER_BASE_GRPC_LOG_H_
#define FLASHBOB_SERVER_BASE_GRPC_LOG_H_

#include <string>

#include "kernels/base/mutex.h"
#include "server/base/clock.h"
#include "server/base/event_log.h"

namespace flashbob::server {

// Takes the process's gRPC over while it lives; one at a time, since gRPC calls a plain function. `log` and `clock`
// must outlive it. Thread safety: any thread.
class GrpcLog {
 public:
  static constexpr int kLinesAMinute = 20;

  GrpcLog(EventLog& log, const Clock& clock);
  ~GrpcLog();
  GrpcLog(const GrpcLog&) = delete;
  GrpcLog& operator=(const GrpcLog&) = delete;

  // Writes one of its lines, unless there were enough of them in this minute.
  void Write(LogLevel level, std::string source, std::string text);

 private:
  EventLog& log_;
  const Clock& clock_;
  Mutex mutex_;
  TimePoint minute_ FLASHBOB_GUARDED_BY(mutex_);  // its beginning
  int lines_ FLASHBOB_GUARDED_BY(mutex_) = 0;     // in that minute, written or not
};

}  // namespace flashbob::server

#endif  // FLASHBOB_SERVER_BASE_GRPC_LOG_H_
