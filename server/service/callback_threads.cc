#include "server/service/callback_threads.h"

#include <grpc/support/cpu.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "kernels/base/mutex.h"

namespace flashbob::server {
namespace {

// A callback begins within microseconds; a machine under load gets its time.
constexpr std::chrono::seconds kToBegin{10};

}  // namespace

// A callback that does not return before it is told to.
class CallbackThreads::Kept {
 public:
  explicit Kept(const std::shared_ptr<grpc::Channel>& channel) : request_(&nothing_, 1) {
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

  void LetGo() {
    MutexLock lock(mutex_);
    let_go_ = true;
    changed_.NotifyAll();
  }

 private:
  void Stay() {
    MutexLock lock(mutex_);
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
  bool begun_ FLASHBOB_GUARDED_BY(mutex_) = false;
  bool let_go_ FLASHBOB_GUARDED_BY(mutex_) = false;
  bool returned_ FLASHBOB_GUARDED_BY(mutex_) = false;
};

int CallbackThreads::Started() { return static_cast<int>(std::clamp(gpr_cpu_num_cores() / 2, 2u, 16u)); }

absl::StatusOr<std::unique_ptr<CallbackThreads>> CallbackThreads::Limit(int serving) {
  std::unique_ptr<CallbackThreads> threads(new CallbackThreads);
  if (serving >= Started()) return threads;
  // All of them, and then lets `serving` go: so many are there for sure.
  for (int i = 0; i < Started(); ++i) {
    if (!threads->KeepOne()) {
      return absl::InternalError(absl::StrCat("gRPC runs ", i, " callbacks at once instead of ", Started(),
                                              ": it cannot be limited to ", serving, " threads"));
    }
  }
  threads->kept_.resize(static_cast<size_t>(Started() - serving));
  return threads;
}

// Without credentials every call fails at once, without a connection.
CallbackThreads::CallbackThreads() : channel_(grpc::CreateChannel("none", nullptr)) {}

// All at once: one that has not begun waits for a thread that another keeps.
CallbackThreads::~CallbackThreads() {
  for (const auto& kept : kept_) kept->LetGo();
}

bool CallbackThreads::KeepOne() {
  kept_.push_back(std::make_unique<Kept>(channel_));
  return kept_.back()->WaitUntilBegun();
}

}  // namespace flashbob::server
