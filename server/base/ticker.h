// Ticker: a thread that calls a function at a fixed interval until it is destroyed.
#ifndef FLASHBOB_SERVER_BASE_TICKER_H_
#define FLASHBOB_SERVER_BASE_TICKER_H_

#include <chrono>
#include <functional>
#include <thread>

#include "kernels/base/mutex.h"

namespace flashbob::server {

// Thread safety: construct and destroy on one thread; the destructor waits for a call in progress.
class Ticker {
 public:
  Ticker(std::chrono::nanoseconds interval, std::function<void()> tick);
  ~Ticker();
  Ticker(const Ticker&) = delete;
  Ticker& operator=(const Ticker&) = delete;

 private:
  void Run();

  const std::chrono::nanoseconds interval_;
  const std::function<void()> tick_;
  Mutex mutex_;
  CondVar stopped_;
  bool stop_ FLASHBOB_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace flashbob::server

#endif  // FLASHBOB_SERVER_BASE_TICKER_H_
