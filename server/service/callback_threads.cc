#include "server/service/callback_threads.h"

#include <grpc/support/cpu.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "absl/strings/str_cat.h"
#include "kernels/base/mutex.h"

namespace flashbob::server {
namespace {

// A callback begins within microseconds; a machine under load gets its time.
constexpr std::chrono::seconds kToBegin{10};

// Of those that serve, while they are few: busy is above, calm below, and calm for so long.
constexpr double kBusyShare = 0.85;
constexpr double kCalmShare = 0.6;
constexpr std::chrono::seconds kCalm{1};

}  // namespace

// A callback that does not return before it is told to, if it `stays`.
class CallbackThreads::Kept {
 public:
  explicit Kept(const std::shared_ptr<grpc::Channel>& channel, bool stays = true)
      : request_(&nothing_, 1), let_go_(!stays) {
    grpc::GenericStub(channel).UnaryCall(&context_, "/none/None", grpc::StubOptions(), &request_, &response_,
                                         [this](const grpc::Status&) { Stay(); });
  }
  // Waits: the last reference to the channel must not go on gRPC's thread, which would then join itself.
  ~Kept() {
    MutexLock lock(mutex_);
    let_go_ = true;
    changed_.NotifyAll();
    while (!returned_) changed_.Wait(mutex_);
  }
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;

  bool WaitUntilBegun() {
    const auto end = std::chrono::steady_clock::now() + kToBegin;
    MutexLock lock(mutex_);
    while (!begun_ && std::chrono::steady_clock::now() < end) changed_.WaitFor(mutex_, kToBegin);
    return begun_;
  }

  bool begun() {
    MutexLock lock(mutex_);
    return begun_;
  }

  // Of its thread, once begun; nothing where the system has none.
  std::optional<clockid_t> clock() {
    MutexLock lock(mutex_);
    return clock_;
  }

  void LetGo() {
    MutexLock lock(mutex_);
    let_go_ = true;
    changed_.NotifyAll();
  }

 private:
  void Stay() {
    MutexLock lock(mutex_);
    clockid_t clock = {};
    if (pthread_getcpuclockid(pthread_self(), &clock) == 0) clock_ = clock;
    begun_ = true;
    changed_.NotifyAll();
    while (!let_go_) changed_.Wait(mutex_);
    returned_ = true;
    changed_.NotifyAll();
  }

  grpc::ClientContext context_;
  const grpc::Slice nothing_;
  grpc::ByteBuffer request_;
  grpc::ByteBuffer response_;
  Mutex mutex_;
  CondVar changed_;
  std::optional<clockid_t> clock_ FLASHBOB_GUARDED_BY(mutex_);
  bool begun_ FLASHBOB_GUARDED_BY(mutex_) = false;
  bool let_go_ FLASHBOB_GUARDED_BY(mutex_);
  bool returned_ FLASHBOB_GUARDED_BY(mutex_) = false;
};

int CallbackThreads::Started() { return static_cast<int>(std::clamp(gpr_cpu_num_cores() / 2, 2u, 16u)); }

absl::StatusOr<std::unique_ptr<CallbackThreads>> CallbackThreads::Limit(int serving) {
  std::unique_ptr<CallbackThreads> threads(new CallbackThreads(serving));
  if (serving >= Started()) return threads;
  // All of them, and then lets `serving` go: so many are there for sure.
  for (int i = 0; i < Started(); ++i) {
    threads->kept_.push_back(std::make_unique<Kept>(threads->channel_));
    if (!threads->kept_.back()->WaitUntilBegun()) {
      return absl::InternalError(absl::StrCat("gRPC runs ", i, " callbacks at once instead of ", Started(),
                                              ": it cannot be limited to ", serving, " threads"));
    }
  }
  for (const auto& kept : threads->kept_) {
    const std::optional<clockid_t> clock = kept->clock();
    if (!clock.has_value()) return absl::InternalError("the system tells no thread's time");
    threads->clocks_.push_back(*clock);
  }
  threads->kept_.resize(static_cast<size_t>(Started() - serving));
  return threads;
}

void CallbackThreads::Look(const Clock& clock) {
  if (clocks_.empty()) return;
  const double busy = Busy(clock);
  Adapt(busy, Late(), clock.Now());
}

// Of the longest time that the use may be of: who looks may itself not get a core in between.
double CallbackThreads::Busy(const Clock& clock) {
  const TimePoint before = clock.Now();
  const Duration used = Used();
  const TimePoint after = clock.Now();
  const bool first = !looked_at_.has_value() || after <= *looked_at_;
  const double busy = first ? 0 : ToSeconds(used - used_) / ToSeconds(after - *looked_at_);
  used_ = used;
  looked_at_ = before;
  return busy;
}

bool CallbackThreads::Late() {
  if (asked_ != nullptr && !asked_->begun()) return true;
  asked_ = std::make_unique<Kept>(channel_, false);
  return false;
}

void CallbackThreads::Adapt(double busy, bool late, TimePoint now) {
  if (late || busy >= (kept_.empty() ? kCalmShare : kBusyShare) * serving_) {
    busy_at_ = now;
    LetAllServe();
  } else if (kept_.empty() && now - busy_at_ >= kCalm) {
    KeepTheRest();
  }
}

Duration CallbackThreads::Used() const {
  Duration used = {};
  for (const clockid_t clock : clocks_) {
    timespec time = {};
    if (clock_gettime(clock, &time) != 0) continue;
    used += std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
  }
  return used;
}

// Without credentials every call fails at once, without a connection.
CallbackThreads::CallbackThreads(int serving) : serving_(serving), channel_(grpc::CreateChannel("none", nullptr)) {}

CallbackThreads::~CallbackThreads() { LetAllServe(); }

void CallbackThreads::KeepTheRest() {
  for (int i = serving_; i < Started(); ++i) kept_.push_back(std::make_unique<Kept>(channel_));
}

// All at once: one that has not begun waits for a thread that another keeps.
void CallbackThreads::LetAllServe() {
  for (const auto& kept : kept_) kept->LetGo();
  kept_.clear();
}

}  // namespace flashbob::server
