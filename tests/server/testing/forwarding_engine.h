// ForwardingEngine: hands everything on to another engine, for engines of tests that change a part.
#ifndef FLASHBOB_TESTS_SERVER_TESTING_FORWARDING_ENGINE_H_
#define FLASHBOB_TESTS_SERVER_TESTING_FORWARDING_ENGINE_H_

#include <memory>
#include <string>
#include <utility>

#include "kernels/engine.h"

namespace flashbob::server {

// Thread safety: any thread.
class ForwardingEngine : public Engine {
 public:
  explicit ForwardingEngine(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {}

  const DeviceInfo& device() const override { return engine_->device(); }
  absl::StatusOr<std::unique_ptr<const Plan>> MakePlan(const Computation& computation) const override {
    return engine_->MakePlan(computation);
  }
  absl::Status Launch(const Plan& plan, int slice, const TensorPointers& tensors, void* workspace,
                      Stream& stream) override {
    return engine_->Launch(plan, slice, tensors, workspace, stream);
  }
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
};

// Another engine as one device of several, which have memory of their own.
class ApartEngine final : public ForwardingEngine {
 public:
  ApartEngine(std::unique_ptr<Engine> engine, std::string name)
      : ForwardingEngine(std::move(engine)), device_(ForwardingEngine::device()) {
    device_.name = std::move(name);
  }
  const DeviceInfo& device() const override { return device_; }
  bool unified_memory() const override { return false; }

 private:
  DeviceInfo device_;
};

}  // namespace flashbob::server

#endif  // FLASHBOB_TESTS_SERVER_TESTING_FORWARDING_ENGINE_H_
