// Cancellation: ends calls from outside.
//
// A handle on shared state: copies are the same Cancellation. Cancelled once, it stays so; calls that are given it
// afterwards end at once. Thread safety: all methods from any thread.
#ifndef FLASHBOB_CLIENT_CPP_FLASHBOB_CANCELLATION_H_
#define FLASHBOB_CLIENT_CPP_FLASHBOB_CANCELLATION_H_

#include <chrono>
#include <functional>
#include <memory>

namespace flashbob::client {

class Cancellation {
 public:
  Cancellation();

  void Cancel();
  bool cancelled() const;

  // Waits until cancelled, at most so long; whether it was.
  bool WaitFor(std::chrono::nanoseconds duration) const;

  // Calls a function once when cancelled (at once where it already was), for as long as the registration lives: once
  // that is gone the function neither runs nor will. The function must not touch this Cancellation.
  class Registration {
   public:
    Registration(const Cancellation& cancellation, std::function<void()> on_cancel);
    ~Registration();
    Registration(const Registration&) = delete;
    Registration& operator=(const Registration&) = delete;

   private:
    std::shared_ptr<struct CancellationState> state_;
    int id_ = 0;
  };

 private:
  std::shared_ptr<struct CancellationState> state_;
};

}  // namespace flashbob::client

#endif  // FLASHBOB_CLIENT_CPP_FLASHBOB_CANCELLATION_H_
