// The seed of tests with random input: FLASHBOB_SEED where it is set, else fresh; printed once, so that a failure can
// be run again.
#ifndef FLASHBOB_TESTS_SEED_H_
#define FLASHBOB_TESTS_SEED_H_

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>

namespace flashbob::testing_seed {

inline uint64_t Seed() {
  static const uint64_t seed = [] {
    const char* set = std::getenv("FLASHBOB_SEED");
    const uint64_t value = set != nullptr ? std::strtoull(set, nullptr, 10) : std::random_device()();
    std::printf("FLASHBOB_SEED=%llu\n", static_cast<unsigned long long>(value));
    return value;
  }();
  return seed;
}

}  // namespace flashbob::testing_seed

#endif  // FLASHBOB_TESTS_SEED_H_
