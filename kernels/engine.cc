#include "kernels/engine.h"

#include <algorithm>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "kernels/base/status_macros.h"

namespace flashbob {

absl::Status Engine::CopyRowsToDevice(void* device, const void* host, const HostRows& rows, Stream& stream) {
  auto* to = static_cast<std::byte*>(device);
  const auto* from = static_cast<const std::byte*>(host);
  for (size_t row = 0; row < rows.rows; ++row) {
    FLASHBOB_RETURN_IF_ERROR(CopyToDevice(to + row * rows.row_bytes, from + row * rows.pitch, rows.row_bytes, stream));
  }
  return absl::OkStatus();
}

absl::Status Engine::CopyRowsToHost(void* host, const HostRows& rows, const void* device, Stream& stream) {
  auto* to = static_cast<std::byte*>(host);
  const auto* from = static_cast<const std::byte*>(device);
  for (size_t row = 0; row < rows.rows; ++row) {
    FLASHBOB_RETURN_IF_ERROR(CopyToHost(to + row * rows.pitch, from + row * rows.row_bytes, rows.row_bytes, stream));
  }
  return absl::OkStatus();
}

absl::Status Engine::CopyAllToDevice(const std::vector<HostCopy>& copies, Stream& stream) {
  for (const HostCopy& copy : copies) {
    FLASHBOB_RETURN_IF_ERROR(CopyToDevice(copy.device, copy.host, copy.bytes, stream));
  }
  return absl::OkStatus();
}

absl::Status Engine::CopyAllToHost(const std::vector<HostCopy>& copies, Stream& stream) {
  for (const HostCopy& copy : copies) {
    FLASHBOB_RETURN_IF_ERROR(CopyToHost(copy.host, copy.device, copy.bytes, stream));
  }
  return absl::OkStatus();
}

absl::Status RunToCompletion(Engine& engine, const Computation& computation, const TensorPointers& tensors,
                             const std::function<void(double done_flops)>& progress) {
  FLASHBOB_ASSIGN_OR_RETURN(const std::unique_ptr<const Plan> plan, engine.MakePlan(computation));
  FLASHBOB_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, engine.CreateStream());

  std::vector<void*> owned;
  const auto free_owned = absl::MakeCleanup([&] {
    // The device may still be at it where a launch failed half way.
    stream->Synchronize().IgnoreError();
    for (void* pointer : owned) engine.Free(pointer);
  });
  const auto allocate = [&](size_t bytes) -> absl::StatusOr<void*> {
    FLASHBOB_ASSIGN_OR_RETURN(void* pointer, engine.Allocate(std::max<size_t>(bytes, 1)));
    owned.push_back(pointer);
    return pointer;
  };

  const AttentionProblem& problem = computation.problem();
  const auto in_place = [&](TensorName name) {
    const auto address = reinterpret_cast<uintptr_t>(tensors.Get(name));
    return engine.unified_memory() && address % SizeOf(problem.DTypeOf(name)) == 0;
  };
  TensorPointers device;
  for (int i = 0; i < kNumTensorNames; ++i) {
    const auto name = static_cast<TensorName>(i);
    if (!computation.HasInput(name) && !computation.Wants(name)) continue;
    const auto bytes = static_cast<size_t>(problem.NumBytes(name));
    if (in_place(name)) {
      device.Set(name, tensors.Get(name));
      continue;
    }
    FLASHBOB_ASSIGN_OR_RETURN(void* pointer, allocate(bytes));
    device.Set(name, pointer);
    if (computation.HasInput(name) && bytes > 0) {
      FLASHBOB_RETURN_IF_ERROR(engine.CopyToDevice(pointer, tensors.Get(name), bytes, *stream));
    }
  }
  FLASHBOB_ASSIGN_OR_RETURN(void* workspace, allocate(plan->workspace_bytes()));
  double done_flops = 0;
  for (int slice = 0; slice < plan->num_slices(); ++slice) {
    FLASHBOB_RETURN_IF_ERROR(engine.Launch(*plan, slice, device, workspace, *stream));
    if (!progress) continue;
    FLASHBOB_RETURN_IF_ERROR(stream->Synchronize());
    done_flops += plan->slice_flops(slice);
    progress(done_flops);
  }
  absl::Status copied = absl::OkStatus();
  computation.outputs().ForEach([&](TensorName name) {
    const auto bytes = static_cast<size_t>(problem.NumBytes(name));
    if (bytes > 0 && !in_place(name))
      copied.Update(engine.CopyToHost(tensors.Get(name), device.Get(name), bytes, *stream));
  });
  FLASHBOB_RETURN_IF_ERROR(copied);
  return stream->Synchronize();
}

}  // namespace flashbob
