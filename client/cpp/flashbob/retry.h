// RetryPolicy, Clock: when a call is tried again.
//
// A try that failed is repeated, with the same request id, when the server said when (RetryInfo) or the code is
// UNAVAILABLE, with which a call ends too whose stream was reset below the service (RST_STREAM). The pause is the
// server's or grows exponentially, whichever is longer, and is spread by jitter so that many clients do not come back
// together. A pause that would end after the call's deadline is not begun: the error is returned as it is.
#ifndef FLASHBOB_CLIENT_CPP_FLASHBOB_RETRY_H_
#define FLASHBOB_CLIENT_CPP_FLASHBOB_RETRY_H_

#include <chrono>

#include "flashbob/cancellation.h"

namespace flashbob::client {

struct RetryPolicy {
  int max_attempts = 8;  // in all; 1: no retries
  std::chrono::nanoseconds initial_backoff = std::chrono::milliseconds(100);
  std::chrono::nanoseconds max_backoff = std::chrono::seconds(10);
  double multiplier = 2;
  double jitter = 0.2;  // a pause is made longer by up to this share of it
};

// The time by which retries are planned. Thread safety: implementations must allow calls from any thread.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual std::chrono::steady_clock::time_point Now() = 0;
  // Returns after the duration, or earlier where the call is cancelled.
  virtual void Sleep(std::chrono::nanoseconds duration, const Cancellation& cancellation) = 0;
};

}  // namespace flashbob::client

#endif  // FLASHBOB_CLIENT_CPP_FLASHBOB_RETRY_H_
