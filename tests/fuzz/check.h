// What a fuzz target asserts: beyond "no crash", that a promise holds for its input.
#ifndef FLASHBOB_TESTS_FUZZ_CHECK_H_
#define FLASHBOB_TESTS_FUZZ_CHECK_H_

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

namespace flashbob::fuzz {

// Ends the process, so that libFuzzer keeps the input, where `holds` is false. `promise` says what was broken.
inline void Check(bool holds, std::string_view promise, std::string_view found = "") {
  if (holds) return;
  std::fprintf(stderr, "broken promise: %.*s\nfound: %.*s\n", static_cast<int>(promise.size()), promise.data(),
               static_cast<int>(found.size()), found.data());
  std::abort();
}

// Whether a text can be logged and shown anywhere: one line, no control characters, nothing but ASCII.
inline bool IsPrintable(std::string_view text) {
  for (const char c : text) {
    if (c < 0x20 || c > 0x7e) return false;
  }
  return true;
}

}  // namespace flashbob::fuzz

#endif  // FLASHBOB_TESTS_FUZZ_CHECK_H_
