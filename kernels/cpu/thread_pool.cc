#include "kernels/cpu/thread_pool.h"

#include <algorithm>

#include "kernels/cpu/tile_product.h"

namespace flashbob::cpu {

ThreadPool::ThreadPool(int threads) {
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { WorkerLoop(); });
}

ThreadPool::~ThreadPool() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.NotifyAll();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::DoTasks(Job& job, int thread) {
  for (int64_t task = job.next.fetch_add(1); task < job.tasks; task = job.next.fetch_add(1)) job.work(task, thread);
}

void ThreadPool::Run(int64_t tasks, int max_threads, Work work) {
  const MutexLock turn(turn_);
  Job job{work, tasks};
  const int helpers = static_cast<int>(std::min<int64_t>({tasks, max_threads, threads()})) - 1;
  if (helpers > 0) {
    {
      const MutexLock lock(mutex_);
      job_ = &job;
      ++job_number_;
      places_ = helpers;
    }
    changed_.NotifyAll();
  }
  {
    const SerialScope serial;
    DoTasks(job, 0);
  }
  if (helpers > 0) {
    const MutexLock lock(mutex_);
    job_ = nullptr;
    while (working_ > 0) changed_.Wait(mutex_);
  }
}

void ThreadPool::WorkerLoop() {
  const SerialScope serial;
  int64_t joined = 0;
  while (true) {
    Job* job = nullptr;
    int thread = 0;
    {
      const MutexLock lock(mutex_);
      while (!stopping_ && (job_ == nullptr || job_number_ == joined || places_ == 0)) changed_.Wait(mutex_);
      if (stopping_) return;
      job = job_;
      joined = job_number_;
      thread = places_--;
      ++working_;
    }
    DoTasks(*job, thread);
    {
      const MutexLock lock(mutex_);
      --working_;
    }
    changed_.NotifyAll();
  }
}

}  // namespace flashbob::cpu
