#include "server/base/grpc_log.h"

#include <grpc/support/log.h>

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace flashbob::server {
namespace {

// The one that gRPC's function finds. The mutex is held while it writes, so that it is not destroyed meanwhile.
struct Taker {
  Mutex mutex;
  GrpcLog* log FLASHBOB_GUARDED_BY(mutex) = nullptr;
};

Taker& TheTaker() {
  static Taker* const taker = new Taker;  // never destroyed: threads of gRPC may outlive main
  return *taker;
}

LogLevel LevelOf(gpr_log_severity severity) {
  switch (severity) {
    case GPR_LOG_SEVERITY_DEBUG:
      return LogLevel::kDebug;
    case GPR_LOG_SEVERITY_INFO:
      return LogLevel::kInfo;
    case GPR_LOG_SEVERITY_ERROR:
      break;
  }
  return LogLevel::kWarning;  // what a peer does wrong is an error to gRPC
}

void Take(gpr_log_func_args* line) {
  const char* const slash = std::strrchr(line->file, '/');
  const std::string source = absl::StrCat(slash == nullptr ? line->file : slash + 1, ":", line->line);
  Taker& taker = TheTaker();
  MutexLock lock(taker.mutex);
  if (taker.log != nullptr) taker.log->Write(LevelOf(line->severity), source, line->message);
}

void SetTaker(GrpcLog* log) {
  Taker& taker = TheTaker();
  MutexLock lock(taker.mutex);
  taker.log = log;
}

}  // namespace

GrpcLog::GrpcLog(EventLog& log, const Clock& clock) : log_(log), clock_(clock), minute_(clock.Now()) {
  SetTaker(this);
  gpr_set_log_function(Take);
}

GrpcLog::~GrpcLog() {
  gpr_set_log_function(nullptr);  // gRPC's own
  SetTaker(nullptr);
}

void GrpcLog::Write(LogLevel level, std::string source, std::string text) {
  const TimePoint now = clock_.Now();
  LogFields fields = {{"source", std::move(source)}, {"text", std::move(text)}};
  {
    MutexLock lock(mutex_);
    if (now - minute_ >= std::chrono::minutes(1)) {
      if (lines_ > kLinesAMinute) fields.emplace_back("left_out_before", int64_t{lines_ - kLinesAMinute});
      minute_ = now;
      lines_ = 0;
    }
    ++lines_;
    if (lines_ > kLinesAMinute) return;
    if (lines_ == kLinesAMinute) fields.emplace_back("note", "the rest of this minute's are left out");
  }
  log_.Write(level, "grpc", fields);
}

}  // namespace flashbob::server
