#include "kernels/cpu/cpu_engine.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/mutex.h"
#include "kernels/base/status_macros.h"
#include "kernels/cpu/cpu_plan.h"
#include "kernels/cpu/host_info.h"
#include "kernels/cpu/page_memory.h"
#include "kernels/cpu/passes.h"
#include "kernels/cpu/thread_pool.h"

namespace flashbob::cpu {
namespace {

constexpr double kSliceSeconds = 0.015;

// FLOP/s of one thread's tile products.
double MeasureFlopsPerSecond() {
  constexpr int64_t kSize = 192;
  constexpr int kRounds = 6;
  const std::vector<float> a(kSize * kSize, 1.0f);
  std::vector<float> c(kSize * kSize);
  const Matrix<const float> factor = {a.data(), kSize};
  const SerialScope serial;
  TileProducts products;
  std::chrono::duration<double> best = std::chrono::seconds(1);
  for (int round = 0; round < kRounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    products.Multiply(kSize, kSize, kSize, 1.0f, AsIs(factor), AsIs(factor), Into::kOverwrite,
                      Matrix<float>{c.data(), kSize});
    best = std::min<std::chrono::duration<double>>(best, std::chrono::steady_clock::now() - start);
  }
  return 2.0 * kSize * kSize * kSize / best.count();
}

// Work is done by the time that Launch and the copies return: there is nothing to wait for.
class CpuStream final : public Stream {
 public:
  absl::Status Synchronize() override { return absl::OkStatus(); }
};

// The first failure among tasks that run at once.
class FirstFailure {
 public:
  void Update(absl::Status status) FLASHBOB_EXCLUDES(mutex_) {
    if (status.ok()) return;
    const MutexLock lock(mutex_);
    status_.Update(std::move(status));
  }
  absl::Status Get() FLASHBOB_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    return status_;
  }

 private:
  Mutex mutex_;
  absl::Status status_ FLASHBOB_GUARDED_BY(mutex_);
};

class CpuEngine final : public Engine {
 public:
  explicit CpuEngine(const CpuEngineOptions& options)
      : pool_(options.threads > 0 ? options.threads : UsableCores()),
        float_kernels_(SelectElementwiseKernels<float>()),
        double_kernels_(SelectElementwiseKernels<double>()) {
    device_.name = "cpu";
    device_.model = CpuModelName();
    device_.compute_units = pool_.threads();
    device_.memory_bytes = UsableMemoryBytes();
    device_.usable_bytes = device_.memory_bytes;
    device_.flops_per_second = 0.8 * MeasureFlopsPerSecond() * pool_.threads();
    slice_flops_ = options.slice_flops > 0 ? options.slice_flops : kSliceSeconds * device_.flops_per_second;
  }

  const DeviceInfo& device() const override { return device_; }

  absl::StatusOr<std::unique_ptr<const Plan>> MakePlan(const Computation& computation) const override {
    // Products of doubles, in half as many lanes and by the other library, run at under half the rate.
    const double share = computation.problem().dtype() == DType::kFloat64 ? 0.4 : 1.0;
    return CpuPlan::Create(computation, {pool_.threads(), share * slice_flops_, device_.memory_bytes,
                                         share * device_.flops_per_second / pool_.threads()});
  }

  absl::Status Launch(const Plan& plan, int slice, const TensorPointers& tensors, void* workspace,
                      Stream& /*stream*/) override {
    const auto* cpu_plan = dynamic_cast<const CpuPlan*>(&plan);
    if (cpu_plan == nullptr) return absl::InvalidArgumentError("the plan is another engine's");
    if (slice < 0 || slice >= plan.num_slices()) {
      return absl::InvalidArgumentError(
          absl::StrCat("slice ", slice, " is asked for; the plan has ", plan.num_slices()));
    }
    if (workspace == nullptr && plan.workspace_bytes() > 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("no workspace is given; the plan needs ", plan.workspace_bytes(), " bytes"));
    }
    FLASHBOB_ASSIGN_OR_RETURN(const Operands operands,
                              Operands::Create(plan.computation(), cpu_plan->schedule(), tensors));
    auto* memory = static_cast<std::byte*>(workspace);
    const CpuPlan::Slice work = cpu_plan->At(slice);
    if (cpu_plan->problem().dtype() == DType::kFloat64) {
      return Run(PassContext<double>{*cpu_plan, work, operands, double_kernels_, memory});
    }
    return Run(PassContext<float>{*cpu_plan, work, operands, float_kernels_, memory});
  }

  absl::StatusOr<std::unique_ptr<Stream>> CreateStream() override { return std::make_unique<CpuStream>(); }

  bool unified_memory() const override { return true; }

  absl::StatusOr<void*> Allocate(size_t bytes) override {
    // More than there is would be given all the same, and the process killed once it is used.
    const bool fits = bytes <= static_cast<size_t>(device_.memory_bytes);
    const size_t rounded = (bytes + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
    void* pointer = fits ? std::aligned_alloc(kTensorAlignment, rounded) : nullptr;
    if (pointer == nullptr) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no ", bytes, " bytes to allocate; the machine has ", device_.memory_bytes));
    }
    return pointer;
  }
  void Free(void* pointer) override { std::free(pointer); }
  // Servers keep host memory for long; a workspace of RunToCompletion lives for a moment, on pages that are there.
  absl::StatusOr<void*> AllocateHost(size_t bytes) override {
    if (bytes >= PageMemory::kSmallestBlock && bytes <= static_cast<size_t>(device_.memory_bytes)) {
      if (void* const pointer = pages_.Allocate(bytes); pointer != nullptr) return pointer;
    }
    return Allocate(bytes);
  }
  void FreeHost(void* pointer) override {
    if (!pages_.Free(pointer)) Free(pointer);
  }

  absl::Status CopyToDevice(void* device, const void* host, size_t bytes, Stream& /*stream*/) override {
    std::memcpy(device, host, bytes);
    return absl::OkStatus();
  }
  absl::Status CopyToHost(void* host, const void* device, size_t bytes, Stream& /*stream*/) override {
    std::memcpy(host, device, bytes);
    return absl::OkStatus();
  }

 private:
  template <typename Real>
  absl::Status Run(const PassContext<Real>& context) {
    const int64_t tasks = context.slice.work.wave.tasks;
    const bool rows = context.slice.pass == CpuPlan::Pass::kRows;
    if (!rows) {
      auto* progress = context.template Part<Progress>(context.plan.map().progress);
      for (int64_t task = 0; task < tasks; ++task) progress[task].steps.store(0, std::memory_order_relaxed);
    }
    FirstFailure failure;
    pool_.Run(tasks, context.plan.threads(), [&](int64_t task, int thread) {
      failure.Update(rows ? RunRowTask(context, task, thread) : RunColumnTask(context, task, thread));
    });
    return failure.Get();
  }

  DeviceInfo device_;
  double slice_flops_ = 0;
  PageMemory pages_;
  ThreadPool pool_;
  const ElementwiseKernels<float> float_kernels_;
  const ElementwiseKernels<double> double_kernels_;
};

}  // namespace

std::unique_ptr<Engine> CreateCpuEngine(const CpuEngineOptions& options) {
  return std::make_unique<CpuEngine>(options);
}

}  // namespace flashbob::cpu
