// Watch: looks at the server under the soak from outside: its metrics, memory, files and threads.
//
// Thread safety: one thread.
#ifndef FLASHBOB_TESTS_SOAK_WATCH_H_
#define FLASHBOB_TESTS_SOAK_WATCH_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/integration/server_process.h"

namespace flashbob::soak {

class Watch {
 public:
  Watch(const integration::ServerProcess& server, int metrics_port);

  // Notes the resident memory; `warm`: from here on it should be flat.
  void Sample(bool warm);
  // Waits until every counter is back at its start, as long as `patience`. Empty, or which is not.
  std::string BackAtTheStart(std::chrono::seconds patience) const;
  // Empty, or by how much the resident memory grew after the warm-up: the second half of the time is compared with the
  // first. From second to second it follows the tensors that the server holds.
  std::string Growth() const;
  std::string ToString() const;

 private:
  std::string NotAtTheStart() const;
  std::vector<int64_t> Windows() const;

  const integration::ServerProcess& server_;
  const int metrics_port_;
  const int64_t files_;
  const int64_t threads_;
  int64_t idle_bytes_ = 0;
  std::vector<int64_t> warm_bytes_;
};

}  // namespace flashbob::soak

#endif  // FLASHBOB_TESTS_SOAK_WATCH_H_
