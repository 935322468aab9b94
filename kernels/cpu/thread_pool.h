// ThreadPool: the threads of one engine. A call's work is cut into tasks that are handed out in ascending order.
//
// Thread safety: any thread may call Run; calls wait for their turn and run one at a time. Owns its threads, which end
// with it.
#ifndef FLASHBOB_KERNELS_CPU_THREAD_POOL_H_
#define FLASHBOB_KERNELS_CPU_THREAD_POOL_H_

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "kernels/base/mutex.h"

namespace flashbob::cpu {

class ThreadPool {
 public:
  // Called with a task in [0, tasks) and the number of the thread among those that take part: the caller of Run is 0.
  using Work = absl::FunctionRef<void(int64_t task, int thread)>;

  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Does every task and returns. A task may wait for tasks of smaller number: those have been started. At most
  // `max_threads` threads take part, the caller among them.
  void Run(int64_t tasks, int max_threads, Work work) FLASHBOB_EXCLUDES(turn_, mutex_);

 private:
  struct Job {
    Work work;
    int64_t tasks;
    std::atomic<int64_t> next = 0;
  };

  static void DoTasks(Job& job, int thread);
  void WorkerLoop() FLASHBOB_EXCLUDES(mutex_);

  Mutex turn_;  // held during Run

  Mutex mutex_;
  CondVar changed_;
  Job* job_ FLASHBOB_GUARDED_BY(mutex_) = nullptr;      // open for workers to join
  int64_t job_number_ FLASHBOB_GUARDED_BY(mutex_) = 0;  // a worker joins a job once
  int places_ FLASHBOB_GUARDED_BY(mutex_) = 0;          // workers that may still join it
  int working_ FLASHBOB_GUARDED_BY(mutex_) = 0;         // workers that have joined and not left
  bool stopping_ FLASHBOB_GUARDED_BY(mutex_) = false;

  std::vector<std::thread> workers_;
};

}  // namespace flashbob::cpu

#endif  // FLASHBOB_KERNELS_CPU_THREAD_POOL_H_
