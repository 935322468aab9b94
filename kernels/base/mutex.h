// Mutex and friends: std::mutex with the attributes of clang's thread-safety analysis.
//
// Not absl::Mutex: the distributions build it without ThreadSanitizer's annotations, so that correct code is reported.
// Every field that a mutex guards says so: `int queued_ FLASHBOB_GUARDED_BY(mutex_);`.
#ifndef FLASHBOB_KERNELS_BASE_MUTEX_H_
#define FLASHBOB_KERNELS_BASE_MUTEX_H_

#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define FLASHBOB_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define FLASHBOB_THREAD_ATTRIBUTE(x)
#endif

#define FLASHBOB_GUARDED_BY(x) FLASHBOB_THREAD_ATTRIBUTE(guarded_by(x))
#define FLASHBOB_REQUIRES(...) FLASHBOB_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define FLASHBOB_EXCLUDES(...) FLASHBOB_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))

namespace flashbob {

class FLASHBOB_THREAD_ATTRIBUTE(capability("mutex")) Mutex {
 public:
  void Lock() FLASHBOB_THREAD_ATTRIBUTE(acquire_capability()) { mutex_.lock(); }
  void Unlock() FLASHBOB_THREAD_ATTRIBUTE(release_capability()) { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

// Holds a mutex for a scope.
class FLASHBOB_THREAD_ATTRIBUTE(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) FLASHBOB_THREAD_ATTRIBUTE(acquire_capability(mutex)) : mutex_(mutex) {
    mutex_.Lock();
  }
  ~MutexLock() FLASHBOB_THREAD_ATTRIBUTE(release_capability()) { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// A condition variable for Mutex. Waits may wake for no reason: call them in a loop over the condition.
class CondVar {
 public:
  void Wait(Mutex& mutex) FLASHBOB_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }

  // False where the time passed without a notification.
  bool WaitFor(Mutex& mutex, std::chrono::nanoseconds duration) FLASHBOB_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    const bool notified = condition_.wait_for(lock, duration) == std::cv_status::no_timeout;
    lock.release();
    return notified;
  }

  void NotifyOne() { condition_.notify_one(); }
  void NotifyAll() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace flashbob

#endif  // FLASHBOB_KERNELS_BASE_MUTEX_H_
