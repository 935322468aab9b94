// Call: what every reactor of the service has in common, whatever its kind: it ends once, is counted and logged once,
// by what its client sees, and lives until gRPC is done with it and nobody else holds it.
//
// Reactions never block, but for the time of a short request. A derived class does all its work under the call's mutex;
// order of locks: call, then scheduler, then memory pool.
#ifndef FLASHBOB_SERVER_SERVICE_CALL_H_
#define FLASHBOB_SERVER_SERVICE_CALL_H_

#include <grpcpp/server_context.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "kernels/base/mutex.h"
#include "server/base/errors.h"
#include "server/base/event_log.h"
#include "server/base/trace_parent.h"
#include "server/metrics/server_metrics.h"
#include "server/service/call_registry.h"
#include "server/service/grpc_status.h"

namespace flashbob::server {

// What calls share; all of it outlives them.
struct CallEnvironment {
  const Clock& clock;
  CallRegistry& calls;
  ServerMetrics& metrics;
  EventLog& log;
  Duration idle_limit;  // a client whose turn it is may do nothing for so long
};

// The deadline of a call on the server's clock.
inline TimePoint DeadlineOf(const grpc::CallbackServerContext& context, const Clock& clock) {
  const auto left = context.deadline() - std::chrono::system_clock::now();
  if (left > std::chrono::hours(24 * 365)) return kNoDeadline;
  return clock.Now() + std::chrono::duration_cast<Duration>(left);
}

// `Reactor` is one of gRPC's Server*Reactor.
template <class Reactor>
class Call : public Reactor, public LiveCall {
 public:
  Call(const CallEnvironment& environment, grpc::CallbackServerContext& context, Method method)
      : environment_(environment),
        method_(method),
        began_(environment.clock.Now()),
        peer_(context.peer()),
        trace_(TraceOf(context)),
        context_(&context) {}

  void Abort(const absl::Status& status) override {
    MutexLock lock(mutex_);
    EndLocked(status);
  }

  void CutIfIdle(TimePoint now) override {
    MutexLock lock(mutex_);
    CutIfIdleLocked(now);
    // A client that does not even take the end of its call keeps what gRPC holds for it; so the call is torn down.
    if (ended_ && context_ != nullptr && now - ended_at_ >= environment_.idle_limit) context_->TryCancel();
  }

  CallView View(TimePoint now) override {
    MutexLock lock(mutex_);
    CallView view = ViewLocked();
    view.age = now - began_;
    if (ended_) {
      view.state = "ending";
      view.waits_for = "the client to take the end of the call";
    }
    return view;
  }

  void OnCancel() override {
    MutexLock lock(mutex_);
    if (context_ != nullptr) EndLocked(CancelledStatus());
  }

  void OnDone() override {
    {
      MutexLock lock(mutex_);
      // Cancelled under our hands, though we had something else to say: nobody heard it.
      if (context_->IsCancelled() && status_.code() != absl::StatusCode::kDeadlineExceeded) {
        status_ = CancelledStatus();
      }
      ReleaseLocked();
      Record();
      context_ = nullptr;
    }
    environment_.calls.Remove(this);
  }

 protected:
  // Ends the call with `status`, unless it has ended.
  void EndLocked(const absl::Status& status) FLASHBOB_REQUIRES(mutex_) {
    if (ended_) return;
    MarkEndedLocked(status);
    ReleaseLocked();
    this->Finish(ToGrpcStatus(status));
  }

  // For a reactor that ends the call itself, with its last message.
  void MarkEndedLocked(const absl::Status& status) FLASHBOB_REQUIRES(mutex_) {
    ended_ = true;
    ended_at_ = environment_.clock.Now();
    status_ = status;
  }

  bool ended() const FLASHBOB_REQUIRES(mutex_) { return ended_; }
  const absl::Status& status() const FLASHBOB_REQUIRES(mutex_) { return status_; }
  const CallEnvironment& environment() const { return environment_; }
  // Only before OnDone, hence in every reaction.
  grpc::CallbackServerContext& context() const FLASHBOB_REQUIRES(mutex_) { return *context_; }

  // Frees what the call holds; called when it ends, at the latest by OnDone, perhaps twice.
  virtual void ReleaseLocked() FLASHBOB_REQUIRES(mutex_) {}
  virtual void CutIfIdleLocked(TimePoint /*now*/) FLASHBOB_REQUIRES(mutex_) {}
  // What is shown of the call.
  virtual void DescribeLocked(CallView& /*view*/) FLASHBOB_REQUIRES(mutex_) {}
  // Adds to what is logged and counted at the end.
  virtual void DescribeLocked(LogFields& /*fields*/) FLASHBOB_REQUIRES(mutex_) {}

  Mutex mutex_;

 private:
  absl::Status CancelledStatus() const FLASHBOB_REQUIRES(mutex_) {
    // gRPC's timer and the wire's rounding may cut a call a little before its deadline by our clock.
    constexpr auto kEarly = std::chrono::milliseconds(50);
    if (context_->deadline() <= std::chrono::system_clock::now() + kEarly) {
      return Error(Reason::kDeadline, "the call's deadline passed");
    }
    return absl::CancelledError("the client cancelled the call or went away");
  }

  CallView ViewLocked() FLASHBOB_REQUIRES(mutex_) {
    CallView view;
    view.method = Name(method_);
    view.peer = peer_;
    DescribeLocked(view);
    return view;
  }

  static std::optional<TraceParent> TraceOf(const grpc::CallbackServerContext& context) {
    const auto header = context.client_metadata().find("traceparent");
    if (header == context.client_metadata().end()) return std::nullopt;
    return ParseTraceParent(std::string_view(header->second.data(), header->second.size()));
  }

  void Record() FLASHBOB_REQUIRES(mutex_) {
    environment_.metrics.CountCall(method_, status_.code());
    environment_.metrics.CountError(ReasonOf(status_));
    LogFields fields = {{"method", std::string(Name(method_))}, {"peer", peer_}};
    if (trace_.has_value()) {
      fields.emplace_back("trace_id", trace_->trace_id);
      fields.emplace_back("parent_id", trace_->parent_id);
    }
    DescribeLocked(fields);
    fields.emplace_back("code", std::string(CodeName(status_.code())));
    if (!status_.ok()) {
      fields.emplace_back("reason", ReasonOf(status_));
      fields.emplace_back("error", std::string(status_.message().data(), status_.message().size()));
    }
    const Duration took = environment_.clock.Now() - began_;
    fields.emplace_back("total_seconds", ToSeconds(took));
    const bool routine = status_.ok() && method_ == Method::kGetServerInfo;
    environment_.log.Write(!status_.ok() ? LogLevel::kWarning
                           : routine     ? LogLevel::kDebug
                                         : LogLevel::kInfo,
                           "call", fields);
    if (routine) return;
    EndedCall ended;
    ended.call = ViewLocked();
    ended.call.age = took;
    ended.ended = std::chrono::system_clock::now();
    ended.code = CodeName(status_.code());
    ended.error = std::string(status_.message().data(), status_.message().size());
    environment_.calls.AddEnded(std::move(ended));
  }

  const CallEnvironment environment_;
  const Method method_;
  const TimePoint began_;
  const std::string peer_;
  const std::optional<TraceParent> trace_;
  grpc::CallbackServerContext* context_ FLASHBOB_GUARDED_BY(mutex_);  // null after OnDone
  bool ended_ FLASHBOB_GUARDED_BY(mutex_) = false;
  TimePoint ended_at_ FLASHBOB_GUARDED_BY(mutex_);
  absl::Status status_ FLASHBOB_GUARDED_BY(mutex_);  // how it ended
};

// A call that is answered at once.
template <class Reactor>
class ImmediateCall final : public Call<Reactor> {
 public:
  using Call<Reactor>::Call;
  void End(const absl::Status& status) {
    MutexLock lock(this->mutex_);
    this->EndLocked(status);
  }
};

// Registers a new call and hands its reactor to gRPC.
template <class T, class... Args>
T* StartCall(const CallEnvironment& environment, Args&&... args) {
  const auto call = std::make_shared<T>(environment, std::forward<Args>(args)...);
  environment.calls.Add(call);
  return call.get();
}

}  // namespace flashbob::server

#endif  // FLASHBOB_SERVER_SERVICE_CALL_H_
