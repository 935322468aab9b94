#include "server/scheduler/device_tensors.h"

#include <algorithm>
#include <utility>

#include "kernels/base/status_macros.h"

namespace flashbob::server {

int64_t DeviceTensors::BytesOf(const Engine& engine, const Plan& plan) {
  if (engine.unified_memory()) return 0;
  return plan.computation().input_bytes() + plan.computation().output_bytes() +
         static_cast<int64_t>(plan.workspace_bytes());
}

absl::StatusOr<DeviceTensors> DeviceTensors::Create(Engine& engine, const Plan& plan, const RequestMemory& memory) {
  DeviceTensors made(engine, plan, memory);
  const TensorSet all = plan.computation().inputs() | plan.computation().outputs();
  if (engine.unified_memory()) {
    all.ForEach([&](TensorName name) { made.tensors_.Set(name, memory.Data(name)); });
    made.workspace_ = memory.workspace.data();
    return made;
  }
  absl::Status status;
  all.ForEach([&](TensorName name) {
    if (!status.ok()) return;
    absl::StatusOr<void*> pointer = made.Allocate(made.BytesOf(name));
    status = pointer.status();
    if (pointer.ok()) made.tensors_.Set(name, *pointer);
  });
  FLASHBOB_RETURN_IF_ERROR(status);
  plan.computation().inputs().ForEach([&](TensorName name) {
    if (made.BytesOf(name) > 0) made.to_copy_.push_back(name);
  });
  FLASHBOB_ASSIGN_OR_RETURN(made.workspace_, made.Allocate(static_cast<int64_t>(plan.workspace_bytes())));
  return made;
}

DeviceTensors::DeviceTensors(DeviceTensors&& other) noexcept
    : engine_(other.engine_),
      plan_(other.plan_),
      memory_(other.memory_),
      tensors_(other.tensors_),
      workspace_(other.workspace_),
      to_copy_(std::move(other.to_copy_)),
      copied_(other.copied_),
      owned_(std::exchange(other.owned_, {})) {}

DeviceTensors::~DeviceTensors() {
  for (void* pointer : owned_) engine_.Free(pointer);
}

absl::StatusOr<void*> DeviceTensors::Allocate(int64_t bytes) {
  if (bytes == 0) return nullptr;
  FLASHBOB_ASSIGN_OR_RETURN(void* pointer, engine_.Allocate(static_cast<size_t>(bytes)));
  owned_.push_back(pointer);
  return pointer;
}

absl::StatusOr<bool> DeviceTensors::CopyMoreInputs(int64_t max_bytes, Stream& stream) {
  while (max_bytes > 0 && !to_copy_.empty()) {
    const TensorName name = to_copy_.back();
    const int64_t bytes = std::min(max_bytes, BytesOf(name) - copied_);
    FLASHBOB_RETURN_IF_ERROR(engine_.CopyToDevice(static_cast<std::byte*>(tensors_.Get(name)) + copied_,
                                                  memory_.Data(name) + copied_, static_cast<size_t>(bytes), stream));
    max_bytes -= bytes;
    copied_ += bytes;
    if (copied_ < BytesOf(name)) continue;
    to_copy_.pop_back();
    copied_ = 0;
  }
  return !to_copy_.empty();
}

absl::Status DeviceTensors::CopyOutputs(Stream& stream) const {
  if (owned_.empty()) return absl::OkStatus();
  absl::Status status;
  plan_.computation().outputs().ForEach([&](TensorName name) {
    const int64_t bytes = BytesOf(name);
    if (bytes == 0) return;
    status.Update(engine_.CopyToHost(memory_.Data(name), tensors_.Get(name), static_cast<size_t>(bytes), stream));
  });
  return status;
}

}  // namespace flashbob::server
