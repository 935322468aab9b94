#include "tests/server/testing/faulty_engine.h"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "kernels/base/status_macros.h"

namespace flashbob::server {
namespace {

constexpr std::array<const char*, FaultyEngine::kNumSteps> kNames = {
    "make_plan", "allocate_host", "allocate", "copy_to_device", "launch", "synchronize", "copy_to_host"};

int64_t Sum(const std::map<void*, size_t>& blocks) {
  int64_t bytes = 0;
  for (const auto& [pointer, size] : blocks) bytes += static_cast<int64_t>(size);
  return bytes;
}

}  // namespace

class FaultyEngine::WatchedStream final : public Stream {
 public:
  WatchedStream(const FaultyEngine& engine, std::unique_ptr<Stream> stream)
      : engine_(engine), stream_(std::move(stream)) {}
  absl::Status Synchronize() override {
    const absl::Status status = stream_->Synchronize();
    FLASHBOB_RETURN_IF_ERROR(engine_.Enter(Step::kSynchronize));
    return status;
  }
  static Stream& Inner(Stream& stream) { return *static_cast<WatchedStream&>(stream).stream_; }

 private:
  const FaultyEngine& engine_;
  const std::unique_ptr<Stream> stream_;
};

const char* FaultyEngine::Name(Step step) { return kNames[static_cast<size_t>(step)]; }

std::optional<FaultyEngine::Step> FaultyEngine::StepOf(std::string_view name) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (name == kNames[i]) return static_cast<Step>(i);
  }
  return std::nullopt;
}

FaultyEngine::~FaultyEngine() {
  if (live_device_bytes() == 0 && live_host_bytes() == 0) return;
  std::fprintf(stderr, "FaultyEngine: %lld host and %lld device bytes were not freed\n",
               static_cast<long long>(live_host_bytes()), static_cast<long long>(live_device_bytes()));
  std::abort();
}

void FaultyEngine::Fail(Step step, const absl::Status& status, int64_t after, int64_t times) {
  MutexLock lock(mutex_);
  Fault& fault = faults_[step];
  fault.status = status;
  fault.after = after;
  fault.times = times;
}

void FaultyEngine::Lose(Step step, const absl::Status& status, int64_t after) {
  Fail(step, status, after);
  MutexLock lock(mutex_);
  faults_[step].sticky = true;
}

void FaultyEngine::Hold(Step step, int64_t after) {
  MutexLock lock(mutex_);
  faults_[step].hold_after = after;
}

void FaultyEngine::WaitUntilHeld() {
  MutexLock lock(mutex_);
  while (held_ == 0) changed_.Wait(mutex_);
}

void FaultyEngine::LetGo() {
  MutexLock lock(mutex_);
  for (auto& [step, fault] : faults_) fault.hold_after = -1;
  changed_.NotifyAll();
}

void FaultyEngine::OnHeld(std::function<void(Step)> on_held) {
  MutexLock lock(mutex_);
  on_held_ = std::move(on_held);
}

int64_t FaultyEngine::live_device_bytes() const {
  MutexLock lock(mutex_);
  return Sum(device_blocks_);
}

int64_t FaultyEngine::live_host_bytes() const {
  MutexLock lock(mutex_);
  return Sum(host_blocks_);
}

absl::Status FaultyEngine::Enter(Step step) const {
  MutexLock lock(mutex_);
  Fault& fault = faults_[step];
  if (fault.hold_after > 0) {
    --fault.hold_after;
  } else if (fault.hold_after == 0) {
    ++held_;
    changed_.NotifyAll();
    if (on_held_) on_held_(step);
    while (fault.hold_after == 0) changed_.Wait(mutex_);
    --held_;
  }
  // A plan is made without the device.
  if (!lost_.ok() && step != Step::kMakePlan) return lost_;
  if (fault.times == 0 || fault.after-- > 0) return absl::OkStatus();
  fault.after = 0;
  --fault.times;
  if (fault.sticky) lost_ = fault.status;
  return fault.status;
}

absl::StatusOr<std::unique_ptr<const Plan>> FaultyEngine::MakePlan(const Computation& computation) const {
  FLASHBOB_RETURN_IF_ERROR(Enter(Step::kMakePlan));
  return engine_->MakePlan(computation);
}

absl::Status FaultyEngine::Launch(const Plan& plan, int slice, const TensorPointers& tensors, void* workspace,
                                  Stream& stream) {
  FLASHBOB_RETURN_IF_ERROR(Enter(Step::kLaunch));
  return engine_->Launch(plan, slice, tensors, workspace, WatchedStream::Inner(stream));
}

absl::StatusOr<std::unique_ptr<Stream>> FaultyEngine::CreateStream() {
  FLASHBOB_ASSIGN_OR_RETURN(std::unique_ptr<Stream> stream, engine_->CreateStream());
  return std::make_unique<WatchedStream>(*this, std::move(stream));
}

absl::StatusOr<void*> FaultyEngine::Allocate(size_t bytes) {
  FLASHBOB_RETURN_IF_ERROR(Enter(Step::kAllocate));
  FLASHBOB_ASSIGN_OR_RETURN(void* const pointer, engine_->Allocate(bytes));
  MutexLock lock(mutex_);
  device_blocks_[pointer] = bytes;
  return pointer;
}

void FaultyEngine::Free(void* pointer) {
  {
    MutexLock lock(mutex_);
    if (device_blocks_.erase(pointer) == 0) std::abort();
  }
  engine_->Free(pointer);
}

absl::StatusOr<void*> FaultyEngine::AllocateHost(size_t bytes) {
  FLASHBOB_RETURN_IF_ERROR(Enter(Step::kAllocateHost));
  FLASHBOB_ASSIGN_OR_RETURN(void* const pointer, engine_->AllocateHost(bytes));
  MutexLock lock(mutex_);
  host_blocks_[pointer] = bytes;
  return pointer;
}

void FaultyEngine::FreeHost(void* pointer) {
  {
    MutexLock lock(mutex_);
    if (host_blocks_.erase(pointer) == 0) std::abort();
  }
  engine_->FreeHost(pointer);
}

absl::Status FaultyEngine::CopyToDevice(void* device, const void* host, size_t bytes, Stream& stream) {
  FLASHBOB_RETURN_IF_ERROR(Enter(Step::kCopyToDevice));
  return engine_->CopyToDevice(device, host, bytes, WatchedStream::Inner(stream));
}

absl::Status FaultyEngine::CopyToHost(void* host, const void* device, size_t bytes, Stream& stream) {
  FLASHBOB_RETURN_IF_ERROR(Enter(Step::kCopyToHost));
  return engine_->CopyToHost(host, device, bytes, WatchedStream::Inner(stream));
}

}  // namespace flashbob::server
