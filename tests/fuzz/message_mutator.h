// Changes protobuf messages for fuzzing by their descriptors: what it makes is always a message of the type, so that a
// target gets past the parser. Deterministic in the generator.
#ifndef FLASHBOB_TESTS_FUZZ_MESSAGE_MUTATOR_H_
#define FLASHBOB_TESTS_FUZZ_MESSAGE_MUTATOR_H_

#include <google/protobuf/message.h>

#include <cstdint>
#include <random>

namespace flashbob::fuzz {

using Random = std::minstd_rand;

// Changes one thing somewhere in the message: a value, an entry of a list, the presence of a field.
void MutateMessage(google::protobuf::Message& message, Random& random);

// Small, or near a power of two, or near the ends of the type.
int64_t InterestingInteger(Random& random);

}  // namespace flashbob::fuzz

#endif  // FLASHBOB_TESTS_FUZZ_MESSAGE_MUTATOR_H_
