// Milliseconds of a duration, as commands print them.
#ifndef FLASHBOB_CLIENT_CLI_MILLISECONDS_H_
#define FLASHBOB_CLIENT_CLI_MILLISECONDS_H_

#include <chrono>

namespace flashbob::cli {

inline double Milliseconds(std::chrono::nanoseconds duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

}  // namespace flashbob::cli

#endif  // FLASHBOB_CLIENT_CLI_MILLISECONDS_H_
