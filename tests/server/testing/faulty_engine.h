// FaultyEngine: another engine whose steps fail, or stop half way, when a test says so. What it computes is the
// other's. By default its memory is apart from the host's, as a GPU's is, so that every step of a request takes place.
//
// Thread safety: any thread. No step may be held when it is destroyed.
#ifndef FLASHBOB_TESTS_SERVER_TESTING_FAULTY_ENGINE_H_
#define FLASHBOB_TESTS_SERVER_TESTING_FAULTY_ENGINE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string_view>

#include "kernels/base/mutex.h"
#include "kernels/engine.h"

namespace flashbob::server {

class FaultyEngine final : public Engine {
 public:
  // What a scheduler asks of an engine, in the order of a request's life. kSynchronize: waiting for a stream.
  enum class Step : uint8_t { kMakePlan, kAllocateHost, kAllocate, kCopyToDevice, kLaunch, kSynchronize, kCopyToHost };
  static constexpr int kNumSteps = 7;
  static const char* Name(Step step);  // "copy_to_device"
  static std::optional<Step> StepOf(std::string_view name);

  explicit FaultyEngine(std::unique_ptr<Engine> engine, bool unified_memory = false)
      : engine_(std::move(engine)), unified_memory_(unified_memory) {}
  // Dies where memory was not freed.
  ~FaultyEngine() override;

  // `after` more calls of the step go well; the `times` after them fail.
  void Fail(Step step, const absl::Status& status, int64_t after = 0, int64_t times = 1);
  // From that call on everything that is asked of the device fails: a sticky error.
  void Lose(Step step, const absl::Status& status, int64_t after = 0);
  // `after` more calls of the step pass; the one after them, and all later ones, wait until LetGo: a device that hangs.
  void Hold(Step step, int64_t after = 0);
  void WaitUntilHeld();
  void LetGo();
  // Called when a step begins to be held.
  void OnHeld(std::function<void(Step)> on_held);
  int64_t live_device_bytes() const;
  int64_t live_host_bytes() const;

  const DeviceInfo& device() const override { return engine_->device(); }
  absl::StatusOr<std::unique_ptr<const Plan>> MakePlan(const Computation& computation) const override;
  absl::Status Launch(const Plan& plan, int slice, const TensorPointers& tensors, void* workspace,
                      Stream& stream) override;
  absl::StatusOr<std::unique_ptr<Stream>> CreateStream() override;
  bool unified_memory() const override { return unified_memory_; }
  absl::StatusOr<void*> Allocate(size_t bytes) override;
  void Free(void* pointer) override;
  absl::StatusOr<void*> AllocateHost(size_t bytes) override;
  void FreeHost(void* pointer) override;
  absl::Status CopyToDevice(void* device, const void* host, size_t bytes, Stream& stream) override;
  absl::Status CopyToHost(void* host, const void* device, size_t bytes, Stream& stream) override;

 private:
  class WatchedStream;

  struct Fault {
    absl::Status status;
    int64_t after = 0;
    int64_t times = 0;
    bool sticky = false;
    int64_t hold_after = -1;  // -1: none is held
  };
  // What the step ends with instead of doing anything; holds it first, where it is to be held.
  absl::Status Enter(Step step) const FLASHBOB_EXCLUDES(mutex_);

  const std::unique_ptr<Engine> engine_;
  const bool unified_memory_;
  mutable Mutex mutex_;
  mutable CondVar changed_;
  mutable std::map<Step, Fault> faults_ FLASHBOB_GUARDED_BY(mutex_);
  mutable absl::Status lost_ FLASHBOB_GUARDED_BY(mutex_);
  mutable int held_ FLASHBOB_GUARDED_BY(mutex_) = 0;  // calls that wait
  std::function<void(Step)> on_held_ FLASHBOB_GUARDED_BY(mutex_);
  std::map<void*, size_t> device_blocks_ FLASHBOB_GUARDED_BY(mutex_);
  std::map<void*, size_t> host_blocks_ FLASHBOB_GUARDED_BY(mutex_);
};

}  // namespace flashbob::server

#endif  // FLASHBOB_TESTS_SERVER_TESTING_FAULTY_ENGINE_H_
