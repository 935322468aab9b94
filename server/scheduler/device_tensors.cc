#include "server/scheduler/device_tensors.h"

#include <algorithm>
#include <utility>

#include "kernels/base/status_macros.h"

namespace flashbob::server {
namespace {

int64_t Align(int64_t bytes) {
  constexpr auto kAlignment = static_cast<int64_t>(kTensorAlignment);
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

TensorSet TensorsOf(const Plan& plan) { return plan.computation().inputs() | plan.computation().outputs(); }

}  // namespace

int64_t DeviceTensors::BytesOf(const Engine& engine, const Plan& plan) {
  if (engine.unified_memory()) return 0;
  int64_t bytes = Align(static_cast<int64_t>(plan.workspace_bytes()));
  TensorsOf(plan).ForEach([&](TensorName name) { bytes += Align(plan.computation().problem().NumBytes(name)); });
  return bytes;
}

absl::StatusOr<DeviceTensors> DeviceTensors::Create(Engine& engine, const Plan& plan, const RequestMemory& memory) {
  DeviceTensors made(engine, plan, memory);
  const TensorSet all = TensorsOf(plan);
  if (engine.unified_memory()) {
    all.ForEach([&](TensorName name) { made.tensors_.Set(name, memory.Data(name)); });
    made.workspace_ = memory.workspace.data();
    return made;
  }
  const int64_t bytes = BytesOf(engine, plan);
  if (bytes == 0) return made;
  FLASHBOB_ASSIGN_OR_RETURN(made.block_, engine.Allocate(static_cast<size_t>(bytes)));
  std::byte* next = static_cast<std::byte*>(made.block_);
  all.ForEach([&](TensorName name) {
    if (made.BytesOf(name) == 0) return;
    made.tensors_.Set(name, next);
    next += Align(made.BytesOf(name));
  });
  made.workspace_ = next;
  plan.computation().inputs().ForEach([&](TensorName name) {
    if (made.BytesOf(name) > 0) made.to_copy_.push_back(name);
  });
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
      copied_input_bytes_(other.copied_input_bytes_),
      block_(std::exchange(other.block_, nullptr)) {}

DeviceTensors::~DeviceTensors() {
  if (block_ != nullptr) engine_.Free(block_);
}

absl::StatusOr<bool> DeviceTensors::CopyMoreInputs(int64_t max_bytes, Stream& stream) {
  while (max_bytes > 0 && !to_copy_.empty()) {
    const TensorName name = to_copy_.back();
    const int64_t bytes = std::min(max_bytes, BytesOf(name) - copied_);
    FLASHBOB_RETURN_IF_ERROR(engine_.CopyToDevice(static_cast<std::byte*>(tensors_.Get(name)) + copied_,
                                                  memory_.Data(name) + copied_, static_cast<size_t>(bytes), stream));
    max_bytes -= bytes;
    copied_ += bytes;
    copied_input_bytes_ += bytes;
    if (copied_ < BytesOf(name)) continue;
    to_copy_.pop_back();
    copied_ = 0;
  }
  return !to_copy_.empty();
}

absl::Status DeviceTensors::CopyOutputs(Stream& stream) const {
  if (block_ == nullptr) return absl::OkStatus();
  absl::Status status;
  plan_.computation().outputs().ForEach([&](TensorName name) {
    const int64_t bytes = BytesOf(name);
    if (bytes == 0) return;
    status.Update(engine_.CopyToHost(memory_.Data(name), tensors_.Get(name), static_cast<size_t>(bytes), stream));
  });
  return status;
}

}  // namespace flashbob::server
