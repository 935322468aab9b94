// DeviceTensors: where the device finds a request's tensors and workspace.
//
// Where host memory is device memory, that is the request's own; elsewhere one block of device memory, allocated here
// and freed by the destructor: the driver is asked once, not for every tensor.
#ifndef FLASHBOB_SERVER_SCHEDULER_DEVICE_TENSORS_H_
#define FLASHBOB_SERVER_SCHEDULER_DEVICE_TENSORS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "kernels/engine.h"
#include "server/scheduler/request.h"

namespace flashbob::server {

// Move-only. Not thread safe. `engine` and `memory` must outlive it.
class DeviceTensors {
 public:
  // Device memory that a plan's tensors and workspace take, each aligned, in bytes; 0 where host memory is device
  // memory.
  static int64_t BytesOf(const Engine& engine, const Plan& plan);

  // RESOURCE_EXHAUSTED where the device does not have the memory.
  static absl::StatusOr<DeviceTensors> Create(Engine& engine, const Plan& plan, const RequestMemory& memory);

  DeviceTensors(DeviceTensors&& other) noexcept;
  DeviceTensors& operator=(DeviceTensors&&) = delete;
  ~DeviceTensors();

  // Starts to copy up to `max_bytes` more of the inputs; false once there is nothing left to copy (at once where host
  // memory is device memory). The stream must have passed all work on these tensors before they are destroyed.
  absl::StatusOr<bool> CopyMoreInputs(int64_t max_bytes, Stream& stream);
  // Starts to copy all outputs back.
  absl::Status CopyOutputs(Stream& stream) const;

  // Of the inputs, since it was made.
  int64_t copied_input_bytes() const { return copied_input_bytes_; }
  const TensorPointers& tensors() const { return tensors_; }
  void* workspace() const { return workspace_; }

 private:
  DeviceTensors(Engine& engine, const Plan& plan, const RequestMemory& memory)
      : engine_(engine), plan_(plan), memory_(memory) {}
  int64_t BytesOf(TensorName name) const { return plan_.computation().problem().NumBytes(name); }

  Engine& engine_;
  const Plan& plan_;
  const RequestMemory& memory_;
  TensorPointers tensors_;
  void* workspace_ = nullptr;
  std::vector<TensorName> to_copy_;  // inputs that are not yet copied whole, the next one last
  int64_t copied_ = 0;               // bytes of that one
  int64_t copied_input_bytes_ = 0;
  void* block_ = nullptr;  // what all of it lies in, where that is device memory
};

}  // namespace flashbob::server

#endif  // FLASHBOB_SERVER_SCHEDULER_DEVICE_TENSORS_H_
