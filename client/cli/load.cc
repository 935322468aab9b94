#include "client/cli/load.h"

#include <algorithm>
#include <cmath>
#include <thread>

#include "kernels/base/mutex.h"

namespace flashbob::cli {
namespace {

using std::chrono::nanoseconds;
using std::chrono::steady_clock;

// What the threads share.
class Load {
 public:
  Load(int concurrency, nanoseconds duration, const std::function<absl::StatusOr<Outcome>(int)>& call)
      : duration_(duration), call_(call), warming_(concurrency), running_(concurrency) {}

  void RunThread(int thread) {
    absl::Status status = call_(thread).status();
    const steady_clock::time_point end = WaitForAll(status);
    std::vector<Sample> samples;
    while (status.ok() && !stopped()) {
      const auto begin = steady_clock::now();
      const absl::StatusOr<Outcome> outcome = call_(thread);
      const auto now = steady_clock::now();
      status = outcome.status();
      if (!status.ok()) break;
      samples.push_back({.latency = now - begin, .queue = outcome->queue, .compute = outcome->compute});
      if (now >= end) break;
    }
    Finish(status, samples);
  }

  // Waits for all threads, telling how far they are.
  void Wait(const std::function<void(double)>& progress) {
    while (true) {
      double share = 0;
      {
        const MutexLock lock(mutex_);
        if (running_ == 0) return;
        changed_.WaitFor(mutex_, std::chrono::milliseconds(100));
        if (warming_ == 0) {
          share = static_cast<double>((steady_clock::now() - begin_).count()) / static_cast<double>(duration_.count());
        }
      }
      progress(share);
    }
  }

  absl::StatusOr<LoadResult> Result() {
    const MutexLock lock(mutex_);
    if (!error_.ok()) return error_;
    return LoadResult{samples_, finished_ - begin_};
  }

 private:
  // When this thread is to stop, once all have made their first call.
  steady_clock::time_point WaitForAll(const absl::Status& status) {
    const MutexLock lock(mutex_);
    error_.Update(status);
    if (--warming_ == 0) {
      begin_ = steady_clock::now();
      changed_.NotifyAll();
    }
    while (warming_ > 0) changed_.Wait(mutex_);
    return begin_ + duration_;
  }

  bool stopped() {
    const MutexLock lock(mutex_);
    return !error_.ok();
  }

  void Finish(const absl::Status& status, const std::vector<Sample>& samples) {
    const MutexLock lock(mutex_);
    error_.Update(status);
    samples_.insert(samples_.end(), samples.begin(), samples.end());
    finished_ = steady_clock::now();
    --running_;
    changed_.NotifyAll();
  }

  const nanoseconds duration_;
  const std::function<absl::StatusOr<Outcome>(int)>& call_;
  Mutex mutex_;
  CondVar changed_;
  int warming_ FLASHBOB_GUARDED_BY(mutex_);  // threads whose first call is under way
  int running_ FLASHBOB_GUARDED_BY(mutex_);
  absl::Status error_ FLASHBOB_GUARDED_BY(mutex_);
  steady_clock::time_point begin_ FLASHBOB_GUARDED_BY(mutex_);
  steady_clock::time_point finished_ FLASHBOB_GUARDED_BY(mutex_);
  std::vector<Sample> samples_ FLASHBOB_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<LoadResult> RunLoad(int concurrency, nanoseconds duration,
                                   const std::function<absl::StatusOr<Outcome>(int thread)>& call,
                                   const std::function<void(double)>& progress) {
  Load load(concurrency, duration, call);
  std::vector<std::thread> threads;
  for (int i = 0; i < concurrency; ++i) threads.emplace_back([&load, i] { load.RunThread(i); });
  load.Wait(progress);
  for (std::thread& thread : threads) thread.join();
  return load.Result();
}

nanoseconds Percentile(std::vector<Sample> samples, double share) {
  const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(samples.size())));
  const auto nth = samples.begin() + static_cast<std::ptrdiff_t>(std::clamp<size_t>(rank, 1, samples.size()) - 1);
  std::nth_element(samples.begin(), nth, samples.end(),
                   [](const Sample& a, const Sample& b) { return a.latency < b.latency; });
  return nth->latency;
}

}  // namespace flashbob::cli
