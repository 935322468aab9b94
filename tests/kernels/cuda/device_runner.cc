#include "tests/kernels/cuda/device_runner.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace flashbob {
namespace {

constexpr size_t kGuardBytes = 4096;
constexpr unsigned char kPoison = 0xff;

// One tensor's device memory between its guards.
struct Buffer {
  char* memory = nullptr;
  size_t bytes = 0;

  char* data() const { return memory + kGuardBytes; }
  size_t whole() const { return bytes + 2 * kGuardBytes; }
};

}  // namespace

conformance::Runner PoisoningRunnerOf(Engine& engine) {
  return [&engine](const Computation& computation, const TensorPointers& host) -> absl::Status {
    const AttentionProblem& problem = computation.problem();
    FLASHBOB_ASSIGN_OR_RETURN(const std::unique_ptr<const Plan> plan, engine.MakePlan(computation));
    FLASHBOB_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, engine.CreateStream());
    std::vector<void*> owned;
    const auto free_owned = absl::MakeCleanup([&] {
      stream->Synchronize().IgnoreError();
      for (void* pointer : owned) engine.Free(pointer);
    });
    std::vector<std::pair<std::string, Buffer>> buffers;
    std::vector<std::vector<unsigned char>> poisons;
    const auto make = [&](const std::string& name, size_t bytes) -> absl::StatusOr<Buffer> {
      Buffer buffer;
      buffer.bytes = bytes;
      FLASHBOB_ASSIGN_OR_RETURN(void* memory, engine.Allocate(buffer.whole()));
      owned.push_back(memory);
      buffer.memory = static_cast<char*>(memory);
      const auto& poison = poisons.emplace_back(buffer.whole(), kPoison);
      FLASHBOB_RETURN_IF_ERROR(engine.CopyToDevice(buffer.memory, poison.data(), poison.size(), *stream));
      buffers.emplace_back(name, buffer);
      return buffer;
    };

    TensorPointers device;
    for (int i = 0; i < kNumTensorNames; ++i) {
      const auto name = static_cast<TensorName>(i);
      if (!computation.HasInput(name) && !computation.Wants(name)) continue;
      const auto bytes = static_cast<size_t>(problem.NumBytes(name));
      FLASHBOB_ASSIGN_OR_RETURN(const Buffer buffer, make(Name(name), bytes));
      device.Set(name, buffer.data());
      if (computation.HasInput(name) && bytes > 0) {
        FLASHBOB_RETURN_IF_ERROR(engine.CopyToDevice(buffer.data(), host.Get(name), bytes, *stream));
      }
    }
    FLASHBOB_ASSIGN_OR_RETURN(const Buffer workspace, make("workspace", plan->workspace_bytes()));
    double flops = 0;
    for (int slice = 0; slice < plan->num_slices(); ++slice) {
      if (plan->slice_flops(slice) < 0)
        return absl::InternalError(absl::StrCat("slice ", slice, " has negative FLOPs"));
      flops += plan->slice_flops(slice);
      FLASHBOB_RETURN_IF_ERROR(engine.Launch(*plan, slice, device, workspace.data(), *stream));
    }
    if (std::abs(flops - computation.flops()) > 1e-6 * computation.flops()) {
      return absl::InternalError(absl::StrCat("slices add up to ", flops, " FLOPs of ", computation.flops()));
    }
    FLASHBOB_RETURN_IF_ERROR(stream->Synchronize());

    std::string written;
    for (const auto& [name, buffer] : buffers) {
      std::vector<unsigned char> after(buffer.whole());
      FLASHBOB_RETURN_IF_ERROR(engine.CopyToHost(after.data(), buffer.memory, after.size(), *stream));
      FLASHBOB_RETURN_IF_ERROR(stream->Synchronize());
      const auto intact = [&](size_t begin) {
        return std::all_of(after.begin() + static_cast<std::ptrdiff_t>(begin),
                           after.begin() + static_cast<std::ptrdiff_t>(begin + kGuardBytes),
                           [](unsigned char byte) { return byte == kPoison; });
      };
      if (!intact(0) || !intact(kGuardBytes + buffer.bytes)) absl::StrAppend(&written, " ", name);
      const std::optional<TensorName> tensor = ParseTensorName(name);
      if (tensor.has_value() && computation.Wants(*tensor) && buffer.bytes > 0) {
        std::copy_n(after.data() + kGuardBytes, buffer.bytes, static_cast<unsigned char*>(host.Get(*tensor)));
      }
    }
    if (!written.empty())
      return absl::InternalError(absl::StrCat("bytes beside device tensors were written:", written));
    return absl::OkStatus();
  };
}

}  // namespace flashbob
