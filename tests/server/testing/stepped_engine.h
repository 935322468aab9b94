// SteppedEngine: an engine for tests of what is around engines. Its "computation" is a pattern that depends on every
// byte of every input, so that a byte that went astray shows; its slices can be held and let go one by one.
#ifndef FLASHBOB_TESTS_SERVER_TESTING_STEPPED_ENGINE_H_
#define FLASHBOB_TESTS_SERVER_TESTING_STEPPED_ENGINE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "kernels/base/mutex.h"
#include "kernels/engine.h"

namespace flashbob::server {

// The bytes of an output that SteppedEngine computes from the inputs' bytes (each NumBytes long; null where empty).
std::vector<std::byte> PatternOf(const Computation& computation, const TensorPointers& inputs, TensorName output);

// Thread safety: any thread.
class SteppedEngine final : public Engine {
 public:
  struct Options {
    int slices = 1;
    bool unified_memory = true;
    size_t workspace_bytes = 0;
    int64_t device_memory_bytes = int64_t{1} << 40;
    double flops_per_second = 1e12;
    const char* name = "stepped";
  };
  explicit SteppedEngine(Options options);
  SteppedEngine() : SteppedEngine(Options()) {}
  // Dies where memory was not freed.
  ~SteppedEngine() override;

  // From now on a slice begins only when Step has been called for it.
  void Hold();
  void Step(int slices);
  // No slice is held any more.
  void LetGo();
  // Waits until so many slices have asked to begin, since the engine was made.
  void WaitForLaunches(int64_t launches);
  int64_t launches() const;
  // Called within each slice, once it may begin.
  void OnSlice(std::function<void()> on_slice);
  // Every later launch fails.
  void Fail(const absl::Status& status);
  // The device is lost: every later launch, copy and allocation fails, but not the host's where it is `only_on_device`.
  void Lose(const absl::Status& status, bool only_on_device = false);
  // Every later plan fails.
  void FailPlans(const absl::Status& status);
  int64_t live_host_bytes() const;
  int64_t live_device_bytes() const;
  // Later AllocateHost fail where it would have more than this at once.
  void LimitHostBytes(int64_t bytes);

  const DeviceInfo& device() const override { return device_; }
  absl::StatusOr<std::unique_ptr<const Plan>> MakePlan(const Computation& computation) const override;
  absl::Status Launch(const Plan& plan, int slice, const TensorPointers& tensors, void* workspace,
                      Stream& stream) override;
  absl::StatusOr<std::unique_ptr<Stream>> CreateStream() override;
  bool unified_memory() const override { return options_.unified_memory; }
  absl::StatusOr<void*> Allocate(size_t bytes) override;
  void Free(void* pointer) override;
  absl::StatusOr<void*> AllocateHost(size_t bytes) override;
  void FreeHost(void* pointer) override;
  absl::Status CopyToDevice(void* device, const void* host, size_t bytes, Stream& stream) override;
  absl::Status CopyToHost(void* host, const void* device, size_t bytes, Stream& stream) override;

 private:
  struct Allocations {
    std::map<void*, size_t> bytes_of;
    int64_t live_bytes = 0;
    int64_t limit_bytes = int64_t{1} << 60;
    absl::Status failure;
  };
  absl::StatusOr<void*> AllocateFrom(Allocations& allocations, size_t bytes) FLASHBOB_REQUIRES(mutex_);
  void FreeTo(Allocations& allocations, void* pointer) FLASHBOB_REQUIRES(mutex_);

  const Options options_;
  DeviceInfo device_;
  mutable Mutex mutex_;
  CondVar changed_;
  bool held_ FLASHBOB_GUARDED_BY(mutex_) = false;
  int64_t allowed_ FLASHBOB_GUARDED_BY(mutex_) = 0;   // slices that may begin while held
  int64_t launches_ FLASHBOB_GUARDED_BY(mutex_) = 0;  // slices that asked to begin
  absl::Status failure_ FLASHBOB_GUARDED_BY(mutex_);
  absl::Status plan_failure_ FLASHBOB_GUARDED_BY(mutex_);
  std::function<void()> on_slice_ FLASHBOB_GUARDED_BY(mutex_);
  Allocations host_ FLASHBOB_GUARDED_BY(mutex_);
  Allocations on_device_ FLASHBOB_GUARDED_BY(mutex_);
};

}  // namespace flashbob::server

#endif  // FLASHBOB_TESTS_SERVER_TESTING_STEPPED_ENGINE_H_
