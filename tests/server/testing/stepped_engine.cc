#include "tests/server/testing/stepped_engine.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "absl/strings/str_cat.h"

namespace flashbob::server {
namespace {

class SteppedPlan final : public Plan {
 public:
  SteppedPlan(Computation computation, int slices, size_t workspace_bytes)
      : Plan(std::move(computation)), slices_(slices), workspace_bytes_(workspace_bytes) {}
  size_t workspace_bytes() const override { return workspace_bytes_; }
  int num_slices() const override { return slices_; }
  double slice_flops(int) const override { return computation().flops() / slices_; }

 private:
  const int slices_;
  const size_t workspace_bytes_;
};

class InOrderStream final : public Stream {
 public:
  absl::Status Synchronize() override { return absl::OkStatus(); }
};

constexpr uint64_t kPrime = 1099511628211u;

// FNV-1a over all inputs, in the order of their names.
uint64_t HashOf(const Computation& computation, const TensorPointers& inputs) {
  uint64_t hash = 14695981039346656037u;
  computation.inputs().ForEach([&](TensorName name) {
    const auto* bytes = static_cast<const unsigned char*>(inputs.Get(name));
    const int64_t size = computation.problem().NumBytes(name);
    for (int64_t i = 0; i < size; ++i) hash = (hash ^ bytes[i]) * kPrime;
  });
  return hash;
}

}  // namespace

std::vector<std::byte> PatternOf(const Computation& computation, const TensorPointers& inputs, TensorName output) {
  uint64_t state = HashOf(computation, inputs) ^ static_cast<uint64_t>(output);
  std::vector<std::byte> pattern(static_cast<size_t>(computation.problem().NumBytes(output)));
  for (std::byte& byte : pattern) {
    state = state * kPrime + 1;
    byte = static_cast<std::byte>(state >> 56);
  }
  return pattern;
}

SteppedEngine::SteppedEngine(Options options) : options_(options) {
  device_.name = options.name;
  device_.model = "engine of the tests";
  device_.compute_units = 1;
  device_.memory_bytes = options.device_memory_bytes;
  device_.usable_bytes = options.device_memory_bytes;
  device_.flops_per_second = options.flops_per_second;
}

SteppedEngine::~SteppedEngine() {
  if (live_host_bytes() != 0 || live_device_bytes() != 0) {
    std::fprintf(stderr, "SteppedEngine: %lld host and %lld device bytes were not freed\n",
                 static_cast<long long>(live_host_bytes()), static_cast<long long>(live_device_bytes()));
    std::abort();
  }
}

void SteppedEngine::Hold() {
  MutexLock lock(mutex_);
  held_ = true;
}

void SteppedEngine::Step(int slices) {
  MutexLock lock(mutex_);
  allowed_ += slices;
  changed_.NotifyAll();
}

void SteppedEngine::LetGo() {
  MutexLock lock(mutex_);
  held_ = false;
  changed_.NotifyAll();
}

void SteppedEngine::WaitForLaunches(int64_t launches) {
  MutexLock lock(mutex_);
  while (launches_ < launches) changed_.Wait(mutex_);
}

int64_t SteppedEngine::launches() const {
  MutexLock lock(mutex_);
  return launches_;
}

void SteppedEngine::OnSlice(std::function<void()> on_slice) {
  MutexLock lock(mutex_);
  on_slice_ = std::move(on_slice);
}

void SteppedEngine::Fail(const absl::Status& status) {
  MutexLock lock(mutex_);
  failure_ = status;
}

void SteppedEngine::Lose(const absl::Status& status, bool only_on_device) {
  MutexLock lock(mutex_);
  failure_ = status;
  on_device_.failure = status;
  if (!only_on_device) host_.failure = status;
}

void SteppedEngine::FailPlans(const absl::Status& status) {
  MutexLock lock(mutex_);
  plan_failure_ = status;
}

int64_t SteppedEngine::live_host_bytes() const {
  MutexLock lock(mutex_);
  return host_.live_bytes;
}

int64_t SteppedEngine::live_device_bytes() const {
  MutexLock lock(mutex_);
  return on_device_.live_bytes;
}

void SteppedEngine::LimitHostBytes(int64_t bytes) {
  MutexLock lock(mutex_);
  host_.limit_bytes = bytes;
}

absl::StatusOr<std::unique_ptr<const Plan>> SteppedEngine::MakePlan(const Computation& computation) const {
  if (computation.problem().dtype() == DType::kFloat64) {
    return absl::UnimplementedError("fp64 is not served by this engine; the nearest that is: fp32");
  }
  {
    MutexLock lock(mutex_);
    if (!plan_failure_.ok()) return plan_failure_;
  }
  return std::make_unique<SteppedPlan>(computation, options_.slices, options_.workspace_bytes);
}

absl::Status SteppedEngine::Launch(const Plan& plan, int slice, const TensorPointers& tensors, void* workspace,
                                   Stream&) {
  std::function<void()> on_slice;
  {
    MutexLock lock(mutex_);
    ++launches_;
    changed_.NotifyAll();
    while (held_ && allowed_ == 0) changed_.Wait(mutex_);
    if (held_) --allowed_;
    if (!failure_.ok()) return failure_;
    on_slice = on_slice_;
  }
  if (on_slice) on_slice();
  if (options_.workspace_bytes > 0) std::memset(workspace, slice, options_.workspace_bytes);
  const Computation& computation = plan.computation();
  if (slice + 1 < plan.num_slices()) return absl::OkStatus();
  computation.outputs().ForEach([&](TensorName name) {
    const std::vector<std::byte> pattern = PatternOf(computation, tensors, name);
    if (!pattern.empty()) std::memcpy(tensors.Get(name), pattern.data(), pattern.size());
  });
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Stream>> SteppedEngine::CreateStream() { return std::make_unique<InOrderStream>(); }

absl::StatusOr<void*> SteppedEngine::Allocate(size_t bytes) {
  MutexLock lock(mutex_);
  return AllocateFrom(on_device_, bytes);
}

void SteppedEngine::Free(void* pointer) {
  MutexLock lock(mutex_);
  FreeTo(on_device_, pointer);
}

absl::StatusOr<void*> SteppedEngine::AllocateHost(size_t bytes) {
  MutexLock lock(mutex_);
  return AllocateFrom(host_, bytes);
}

void SteppedEngine::FreeHost(void* pointer) {
  MutexLock lock(mutex_);
  FreeTo(host_, pointer);
}

absl::Status SteppedEngine::CopyToDevice(void* device, const void* host, size_t bytes, Stream&) {
  {
    MutexLock lock(mutex_);
    if (!on_device_.failure.ok()) return on_device_.failure;
  }
  std::memcpy(device, host, bytes);
  return absl::OkStatus();
}

absl::Status SteppedEngine::CopyToHost(void* host, const void* device, size_t bytes, Stream&) {
  {
    MutexLock lock(mutex_);
    if (!on_device_.failure.ok()) return on_device_.failure;
  }
  std::memcpy(host, device, bytes);
  return absl::OkStatus();
}

absl::StatusOr<void*> SteppedEngine::AllocateFrom(Allocations& allocations, size_t bytes) {
  if (!allocations.failure.ok()) return allocations.failure;
  if (static_cast<int64_t>(bytes) > allocations.limit_bytes - allocations.live_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat(bytes, " bytes with ", allocations.live_bytes, " of ", allocations.limit_bytes, " in use"));
  }
  void* const pointer = ::operator new(bytes, std::align_val_t(kTensorAlignment));
  std::memset(pointer, 0xcd, bytes);
  allocations.bytes_of[pointer] = bytes;
  allocations.live_bytes += static_cast<int64_t>(bytes);
  return pointer;
}

void SteppedEngine::FreeTo(Allocations& allocations, void* pointer) {
  const auto found = allocations.bytes_of.find(pointer);
  if (found == allocations.bytes_of.end()) std::abort();
  allocations.live_bytes -= static_cast<int64_t>(found->second);
  allocations.bytes_of.erase(found);
  ::operator delete(pointer, std::align_val_t(kTensorAlignment));
}

}  // namespace flashbob::server
