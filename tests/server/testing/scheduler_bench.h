// A FairScheduler with a clock and devices that are stepped by hand, and requests to it.
#ifndef FLASHBOB_TESTS_SERVER_TESTING_SCHEDULER_BENCH_H_
#define FLASHBOB_TESTS_SERVER_TESTING_SCHEDULER_BENCH_H_

#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "server/scheduler/fair_scheduler.h"
#include "tests/server/testing/step_clock.h"
#include "tests/server/testing/stepped_engine.h"

namespace flashbob::server {

inline constexpr int64_t kHostLimit = 1 << 20;
inline constexpr int64_t kMessageBytes = 4096;

// FORWARD on [1, heads, length, 8], of which only o is wanted.
inline Computation Forward(int64_t length, DType dtype = DType::kFloat32, int64_t heads = 1) {
  std::vector<TensorInfo> inputs;
  for (TensorName name : {TensorName::kQ, TensorName::kK, TensorName::kV}) {
    inputs.push_back({name, dtype, {1, heads, length, 8}});
  }
  return *Computation::Create(Operation::kForward, {}, inputs, {TensorName::kO});
}

// Takes all but a little of the host memory.
inline Computation Big() { return Forward(kHostLimit / 4 / 8 / 4 - 512); }

// Remembers what it hears, and waits for it.
class RecordingListener final : public RequestListener {
 public:
  void OnAdmitted() override {
    MutexLock lock(mutex_);
    admitted_ = true;
    changed_.NotifyAll();
  }
  void OnProgress(double done_flops) override {
    MutexLock lock(mutex_);
    progress_.push_back(done_flops);
  }
  void OnComputed(const absl::Status& status) override {
    MutexLock lock(mutex_);
    computed_ = status;
    changed_.NotifyAll();
  }

  void WaitUntilAdmitted() {
    MutexLock lock(mutex_);
    while (!admitted_) changed_.Wait(mutex_);
  }
  absl::Status WaitUntilComputed() {
    MutexLock lock(mutex_);
    while (!computed_.has_value()) changed_.Wait(mutex_);
    return *computed_;
  }
  bool admitted() const {
    MutexLock lock(mutex_);
    return admitted_;
  }
  bool computed() const {
    MutexLock lock(mutex_);
    return computed_.has_value();
  }
  std::vector<double> progress() const {
    MutexLock lock(mutex_);
    return progress_;
  }

 private:
  mutable Mutex mutex_;
  CondVar changed_;
  bool admitted_ FLASHBOB_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> computed_ FLASHBOB_GUARDED_BY(mutex_);
  std::vector<double> progress_ FLASHBOB_GUARDED_BY(mutex_);
};

// A scheduler on a held engine: no slice begins before engine.Step.
struct Bench {
  explicit Bench(SteppedEngine::Options engine_options = {}, int64_t max_queued = 100, bool two_devices = false,
                 int64_t inline_copy_bytes = 0, Duration within_ready = Duration(0),
                 double split_seconds = std::numeric_limits<double>::infinity())
      : engine(engine_options),
        second(Second(engine_options)),
        pool(engine, clock, kHostLimit),
        metrics("test", {"stepped", "second"}) {
    FairScheduler::Options options;
    options.max_queued_requests = max_queued;
    options.max_message_bytes = kMessageBytes;
    options.inline_copy_bytes = inline_copy_bytes;
    options.within_ready = within_ready;
    options.split_seconds = split_seconds;
    options.on_device_lost = [this](const absl::Status&) { ++devices_lost; };
    std::vector<Engine*> engines = {&engine};
    if (two_devices) engines.push_back(&second);
    scheduler = *FairScheduler::Create(engines, pool, clock, metrics, options);
    engine.Hold();
    second.Hold();
  }
  ~Bench() {
    engine.LetGo();
    second.LetGo();
  }

  static SteppedEngine::Options Second(SteppedEngine::Options options) {
    options.name = "second";
    return options;
  }

  // Waits until no memory is held; the scheduler frees it on threads of its own.
  void WaitUntilAllIsFree() {
    const std::atomic<bool> withdrawn = false;
    EXPECT_TRUE(pool.Reserve(kHostLimit, withdrawn).has_value());
  }
  // Until the scheduler knows that a request has to wait for memory.
  void WaitUntilOneWaits() const {
    while (pool.Use().waiting == 0) std::this_thread::yield();
  }
  int64_t In(RequestState state) const { return scheduler->CountByState()[static_cast<size_t>(state)]; }

  StepClock clock;
  SteppedEngine engine;
  SteppedEngine second;
  HostMemoryPool pool;
  ServerMetrics metrics;
  std::atomic<int> devices_lost = 0;
  std::unique_ptr<FairScheduler> scheduler;
};

// A request that was submitted, and its listener.
struct Sent {
  Sent(Bench& bench, Computation computation, TimePoint deadline = kNoDeadline,
       std::shared_ptr<Tenant> tenant = nullptr)
      : bench(bench),
        listener(std::make_shared<RecordingListener>()),
        submitted(bench.scheduler->Submit({"id", std::move(computation), deadline, listener, std::move(tenant)})) {}
  ~Sent() { Release(); }
  // Where memory is apart from the device's, new host memory is allocated on a thread of the scheduler's.
  void WaitUntilAdmitted() {
    if (!submitted->admitted) listener->WaitUntilAdmitted();
  }
  void Ready() { bench.scheduler->Ready(submitted->request); }
  void Release() {
    if (submitted.ok()) bench.scheduler->Release(submitted->request);
  }
  Request& request() { return *submitted->request; }
  absl::Status refusal() const { return submitted.status(); }

  Bench& bench;
  std::shared_ptr<RecordingListener> listener;
  absl::StatusOr<Submitted> submitted;
};

}  // namespace flashbob::server

#endif  // FLASHBOB_TESTS_SERVER_TESTING_SCHEDULER_BENCH_H_
