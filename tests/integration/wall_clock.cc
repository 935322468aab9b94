// The wall clock of flashbob-faulty-server: the system's, which jumps by FLASHBOB_TEST_WALL_CLOCK_JUMP seconds, where
// that is set, with SIGUSR2. The programs' own definition comes before the C library's for all of a process.
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>

namespace {

std::atomic<long> offset_seconds = 0;
long jump_seconds = 0;

// Before main, for signals may come as soon as the program serves.
[[maybe_unused]] const bool ready = [] {
  const char* const set = std::getenv("FLASHBOB_TEST_WALL_CLOCK_JUMP");
  if (set == nullptr) return false;
  jump_seconds = std::strtol(set, nullptr, 10);
  return signal(SIGUSR2, [](int) { offset_seconds = jump_seconds; }) != SIG_ERR;
}();

}  // namespace

// Not instrumented: it may be called before a sanitizer is ready.
extern "C" __attribute__((no_sanitize("address"))) int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const long result = syscall(SYS_clock_gettime, clock, time);
  if (clock == CLOCK_REALTIME) time->tv_sec += offset_seconds;
  return static_cast<int>(result);
}
