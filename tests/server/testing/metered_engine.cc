#include "tests/server/testing/metered_engine.h"

#include <chrono>
#include <utility>

namespace flashbob::server {

std::map<int64_t, std::vector<double>> MeteredEngine::TakeSlices() {
  MutexLock lock(mutex_);
  return std::exchange(slices_, {});
}

absl::Status MeteredEngine::Launch(const Plan& plan, int slice, const TensorPointers& tensors, void* workspace,
                                   Stream& stream) {
  const auto began = std::chrono::steady_clock::now();
  absl::Status status = ForwardingEngine::Launch(plan, slice, tensors, workspace, stream);
  status.Update(stream.Synchronize());
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  MutexLock lock(mutex_);
  slices_[plan.computation().problem().total_queries()].push_back(took.count());
  return status;
}

}  // namespace flashbob::server
