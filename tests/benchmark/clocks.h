// Two clocks read together: the wall's, and the CPU time that was spent meanwhile. On a machine that others load too,
// only the second says what the work itself costs.
#ifndef FLASHBOB_TESTS_BENCHMARK_CLOCKS_H_
#define FLASHBOB_TESTS_BENCHMARK_CLOCKS_H_

#include <ctime>

namespace flashbob {

// Seconds.
struct Times {
  double wall = 0;
  double cpu = 0;

  Times operator-(const Times& earlier) const { return {wall - earlier.wall, cpu - earlier.cpu}; }
};

inline double ReadClock(clockid_t clock) {
  timespec time = {};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// CPU time of the calling thread, or of all threads of the process.
inline Times ThreadNow() { return {ReadClock(CLOCK_MONOTONIC), ReadClock(CLOCK_THREAD_CPUTIME_ID)}; }
inline Times ProcessNow() { return {ReadClock(CLOCK_MONOTONIC), ReadClock(CLOCK_PROCESS_CPUTIME_ID)}; }

}  // namespace flashbob

#endif  // FLASHBOB_TESTS_BENCHMARK_CLOCKS_H_
