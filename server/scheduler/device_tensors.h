// DeviceTensors: where the device finds the tensors and the workspace of a request, or of a shard of it.
//
// Where host memory is device memory, that is the request's own; elsewhere one block of device memory, allocated here
// and freed by the destructor: the driver is asked once, not for every tensor. Only the shard's bytes are copied, in
// and out; other shards of the same request may be copied at the same time.
#ifndef FLASHBOB_SERVER_SCHEDULER_DEVICE_TENSORS_H_
#define FLASHBOB_SERVER_SCHEDULER_DEVICE_TENSORS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "kernels/engine.h"
#include "server/scheduler/request.h"
#include "server/scheduler/shard.h"

namespace flashbob::server {

// Move-only. Not thread safe. `engine` must outlive it, `memory` all copies.
class DeviceTensors {
 public:
  // Device memory that a plan's tensors and workspace take, each aligned, in bytes; 0 where host memory is device
  // memory.
  static int64_t BytesOf(const Engine& engine, const Plan& plan);

  // `plan` is the shard's; `memory` is that of the whole problem. A shard that is not all of it needs memory apart from
  // the host's. RESOURCE_EXHAUSTED where the device does not have the memory.
  static absl::StatusOr<DeviceTensors> Create(Engine& engine, const Plan& plan, const RequestMemory& memory,
                                              const AttentionProblem& whole, const Shard& shard);

  DeviceTensors(DeviceTensors&& other) noexcept;
  DeviceTensors& operator=(DeviceTensors&&) = delete;
  ~DeviceTensors();

  // Starts to copy up to `max_bytes` more of the inputs; false once there is nothing left to copy (at once where host
  // memory is device memory). The stream must have passed all work on these tensors before they are destroyed.
  absl::StatusOr<bool> CopyMoreInputs(int64_t max_bytes, Stream& stream);
  // Starts to copy all outputs back.
  absl::Status CopyOutputs(Stream& stream) const;
  // The same of all inputs that are left, and of all outputs, on the stream that computes: as one where they are small.
  absl::Status CopyInputsTogether(Stream& stream);
  absl::Status CopyOutputsTogether(Stream& stream) const;

  // Of the inputs, since it was made.
  int64_t copied_input_bytes() const { return copied_input_bytes_; }
  const TensorPointers& tensors() const { return tensors_; }
  void* workspace() const { return workspace_; }

 private:
  // Rows of one tensor, here and there.
  struct Piece {
    std::byte* host = nullptr;
    std::byte* device = nullptr;  // where they lie one after the other
    HostRows rows;
  };

  explicit DeviceTensors(Engine& engine) : engine_(engine) {}
  static void AddPieces(std::byte* host, std::byte* device, const std::vector<ByteRows>& blocks,
                        std::vector<Piece>& pieces);

  Engine& engine_;
  TensorPointers tensors_;
  void* workspace_ = nullptr;
  std::vector<Piece> inputs_;  // that are not yet copied, the next one last
  std::vector<Piece> outputs_;
  int64_t copied_input_bytes_ = 0;
  void* block_ = nullptr;  // what all of it lies in, where that is device memory
};

}  // namespace flashbob::server

#endif  // FLASHBOB_SERVER_SCHEDULER_DEVICE_TENSORS_H_
