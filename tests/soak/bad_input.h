// Calls of the soak that break the contract, each with how it must end. A free function; any thread.
#ifndef FLASHBOB_TESTS_SOAK_BAD_INPUT_H_
#define FLASHBOB_TESTS_SOAK_BAD_INPUT_H_

#include <random>
#include <string>

#include "flashbob/v1/attention_service.grpc.pb.h"

namespace flashbob::soak {

struct BadCall {
  std::string name;     // of the kind
  std::string outcome;  // code and reason
  std::string fault;    // empty, or what is wrong with how it ended
};

// Makes a call that is wrong in some way, as the tenant whose token this is.
BadCall CallBadly(v1::AttentionService::Stub& stub, const std::string& token, std::mt19937_64& random);

}  // namespace flashbob::soak

#endif  // FLASHBOB_TESTS_SOAK_BAD_INPUT_H_
