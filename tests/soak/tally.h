// Tally: what the clients of the soak did and how it ended. What no promise allows is kept in words.
//
// Thread safety: any thread.
#ifndef FLASHBOB_TESTS_SOAK_TALLY_H_
#define FLASHBOB_TESTS_SOAK_TALLY_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "kernels/base/mutex.h"

namespace flashbob::soak {

class Tally {
 public:
  // An action ended as it may.
  void Count(const std::string& action, const std::string& outcome);
  // An action ended as it may not.
  void Fault(const std::string& action, const std::string& what);
  void CountChecked(int64_t bytes);

  int64_t faults() const;
  int64_t actions() const;
  int64_t Of(const std::string& action) const;
  std::string ToString() const;

 private:
  mutable Mutex mutex_;
  std::map<std::pair<std::string, std::string>, int64_t> outcomes_ FLASHBOB_GUARDED_BY(mutex_);
  std::map<std::string, int64_t> faults_ FLASHBOB_GUARDED_BY(mutex_);
  int64_t checked_ FLASHBOB_GUARDED_BY(mutex_) = 0;
  int64_t checked_bytes_ FLASHBOB_GUARDED_BY(mutex_) = 0;
};

// "OK", or the code with the reason: "RESOURCE_EXHAUSTED QUOTA".
std::string OutcomeOf(const absl::Status& status);

}  // namespace flashbob::soak

#endif  // FLASHBOB_TESTS_SOAK_TALLY_H_
