// MeteredEngine: another engine, and how long its slices took, by the length of the problem that they belong to, so
// that a test tells tenants apart by the lengths they ask for.
#ifndef FLASHBOB_TESTS_SERVER_TESTING_METERED_ENGINE_H_
#define FLASHBOB_TESTS_SERVER_TESTING_METERED_ENGINE_H_

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/base/mutex.h"
#include "tests/server/testing/forwarding_engine.h"

namespace flashbob::server {

// Thread safety: any thread.
class MeteredEngine final : public ForwardingEngine {
 public:
  explicit MeteredEngine(std::unique_ptr<Engine> engine) : ForwardingEngine(std::move(engine)) {}

  // Seconds of each slice since the last call, by the number of queries of its problem.
  std::map<int64_t, std::vector<double>> TakeSlices();

  absl::Status Launch(const Plan& plan, int slice, const TensorPointers& tensors, void* workspace,
                      Stream& stream) override;

 private:
  Mutex mutex_;
  std::map<int64_t, std::vector<double>> slices_ FLASHBOB_GUARDED_BY(mutex_);
};

}  // namespace flashbob::server

#endif  // FLASHBOB_TESTS_SERVER_TESTING_METERED_ENGINE_H_
