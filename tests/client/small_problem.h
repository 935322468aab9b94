// A small problem, and a client of a FakeService to send it.
#ifndef FLASHBOB_TESTS_CLIENT_SMALL_PROBLEM_H_
#define FLASHBOB_TESTS_CLIENT_SMALL_PROBLEM_H_

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "flashbob/client.h"
#include "tests/client/fake_service.h"

namespace flashbob::client {

inline const Shape kShape = {1, 2, 3, 4};

inline std::vector<float> Iota(size_t size, float first) {
  std::vector<float> values(size);
  std::iota(values.begin(), values.end(), first);
  return values;
}

// q, k, v of kShape with different values.
struct Problem {
  std::vector<float> q = Iota(24, 0);
  std::vector<float> k = Iota(24, 100);
  std::vector<float> v = Iota(24, 200);

  Inputs inputs() const { return {.q = {q, kShape}, .k = {k, kShape}, .v = {v, kShape}}; }
};

inline Client ConnectTo(const FakeService& service, ClientOptions options = {}) {
  options.server = service.address();
  absl::StatusOr<Client> client = Client::Connect(std::move(options));
  EXPECT_TRUE(client.ok()) << client.status();
  return *std::move(client);
}

inline bool Contains(const absl::Status& status, const std::string& text) {
  return std::string(status.message()).find(text) != std::string::npos;
}

}  // namespace flashbob::client

#endif  // FLASHBOB_TESTS_CLIENT_SMALL_PROBLEM_H_
