// MeteredEngine: another engine, and how long its slices took, by the length of the problem that they belong to, so
// that a test tells tenants apart by the lengths they ask for.
#ifndef FLASHBOB_TESTS_SERVER_TESTING_METERED_ENGINE_H_
#define FLASHBOB_TESTS_SERVER_TESTING_METERED_ENGINE_H_

#include <map>
#include <memory>
#include <vector>

#include "kernels/base/mutex.h"
#include "kernels/engine.h"

namespace flashbob::server {

// Thread safety: any thread.
class MeteredEngine final : public Engine {
 public:
  explicit MeteredEngine(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {}

  // Seconds of each slice since the last call, by the number of queries of its problem.
  std::map<int64_t, std::vector<double>> TakeSlices();

  const DeviceInfo& device() const override { return engine_->device(); }
  absl::StatusOr<std::unique_ptr<const Plan>> MakePlan(const Computation& computation) const override {
    return engine_->MakePlan(computation);
  }
  absl::Status Launch(const Plan& plan, int slice, const TensorPointers& tensors, void* workspace,
                      Stream& stream) override;
  absl::StatusOr<std::unique_ptr<Stream>> CreateStream() override { return engine_->CreateStream(); }
  bool unified_memory() const override { return engine_->unified_memory(); }
  absl::StatusOr<void*> Allocate(size_t bytes) override { return engine_->Allocate(bytes); }
  void Free(void* pointer) override { engine_->Free(pointer); }
  absl::StatusOr<void*> AllocateHost(size_t bytes) override { return engine_->AllocateHost(bytes); }
  void FreeHost(void* pointer) override { engine_->FreeHost(pointer); }
  absl::Status CopyToDevice(void* device, const void* host, size_t bytes, Stream& stream) override {
    return engine_->CopyToDevice(device, host, bytes, stream);
  }
  absl::Status CopyToHost(void* host, const void* device, size_t bytes, Stream& stream) override {
    return engine_->CopyToHost(host, device, bytes, stream);
  }

 private:
  const std::unique_ptr<Engine> engine_;
  Mutex mutex_;
  std::map<int64_t, std::vector<double>> slices_ FLASHBOB_GUARDED_BY(mutex_);
};

}  // namespace flashbob::server

#endif  // FLASHBOB_TESTS_SERVER_TESTING_METERED_ENGINE_H_
