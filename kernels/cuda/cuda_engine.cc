#include "kernels/cuda/cuda_engine.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/mutex.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/copies.h"
#include "kernels/cuda/cuda_plan.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/device_traits.h"

namespace flashbob {
namespace {

using cuda::ToStatus;

constexpr int kOldestMajor = 8;

// Of a device's free memory, what is left to the driver, for kernels' code and spilled registers, to pools that round
// up, and to whoever else comes.
constexpr size_t kLeastReserveBytes = size_t{512} << 20;
constexpr size_t kReserveShare = 16;

// Blocks of at most so many bytes are kept where they are freed, at most so many of them.
constexpr size_t kSmallBytes = size_t{4} << 20;
constexpr size_t kMostKept = 16;

// Copies of at most so many bytes go together; a copy engine is no slower with longer ones.
constexpr size_t kMostTogether = size_t{256} << 10;

// Makes a device current on the calling thread, and leaves it so: to make another current again would give that one a
// context, hundreds of megabytes of it, where this process has no business there.
//
// Also where cudaGetDevice names it already: a thread that has called nothing yet has device 0 so, but no context, and
// the driver's functions, which make tensor maps, fail without one.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device) : status_(ToStatus(cudaSetDevice(device), "making a device current")) {}
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

  const absl::Status& status() const { return status_; }

 private:
  absl::Status status_;
};

class CudaStream : public Stream {
 public:
  CudaStream(int device, cudaStream_t stream) : device_(device), stream_(stream) {}
  ~CudaStream() override {
    const CurrentDevice current(device_);
    cudaStreamDestroy(stream_);
  }
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  absl::Status Synchronize() override {
    const CurrentDevice current(device_);
    FLASHBOB_RETURN_IF_ERROR(current.status());
    return ToStatus(cudaStreamSynchronize(stream_), absl::StrCat("waiting for cuda:", device_));
  }

  cudaStream_t get() const { return stream_; }

 private:
  int device_;
  cudaStream_t stream_;
};

class CudaEngine : public Engine {
 public:
  CudaEngine(int device, DeviceInfo info, cuda::DeviceTraits traits, cudaMemPool_t pool, cudaStream_t memory_stream,
             const CudaEngineOptions& options)
      : device_(device),
        info_(std::move(info)),
        traits_(traits),
        pool_(pool),
        memory_stream_(memory_stream),
        options_(options) {}
  ~CudaEngine() override {
    const CurrentDevice current(device_);
    FreeKept();
    cudaStreamDestroy(memory_stream_);
    cudaMemPoolDestroy(pool_);
  }

  const DeviceInfo& device() const override { return info_; }

  absl::StatusOr<std::unique_ptr<const Plan>> MakePlan(const Computation& computation) const override {
    const CurrentDevice current(device_);
    FLASHBOB_RETURN_IF_ERROR(current.status());
    return cuda::CudaPlan::Create(computation, traits_, options_.slice_seconds);
  }

  absl::Status Launch(const Plan& plan, int slice, const TensorPointers& tensors, void* workspace,
                      Stream& stream) override {
    const auto* cuda_plan = dynamic_cast<const cuda::CudaPlan*>(&plan);
    const auto* cuda_stream = dynamic_cast<const CudaStream*>(&stream);
    if (cuda_plan == nullptr || cuda_stream == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(info_.name, " was given a plan or stream of another engine"));
    }
    if (slice < 0 || slice >= plan.num_slices()) {
      return absl::InvalidArgumentError(absl::StrCat("slice ", slice, " of a plan of ", plan.num_slices()));
    }
    const CurrentDevice current(device_);
    FLASHBOB_RETURN_IF_ERROR(current.status());
    return cuda_plan->Launch(slice, tensors, workspace, cuda_stream->get());
  }

  absl::StatusOr<std::unique_ptr<Stream>> CreateStream() override {
    const CurrentDevice current(device_);
    FLASHBOB_RETURN_IF_ERROR(current.status());
    cudaStream_t stream = nullptr;
    FLASHBOB_RETURN_IF_ERROR(ToStatus(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "creating a stream"));
    return std::make_unique<CudaStream>(device_, stream);
  }

  bool unified_memory() const override { return false; }

  // Stream ordered on a stream that does nothing else, so that allocation waits for no kernel.
  absl::StatusOr<void*> Allocate(size_t bytes) override {
    const CurrentDevice current(device_);
    FLASHBOB_RETURN_IF_ERROR(current.status());
    void* pointer = TakeKept(bytes);
    if (pointer != nullptr) return pointer;
    cudaError_t error = cudaMallocFromPoolAsync(&pointer, bytes, pool_, memory_stream_);
    if (error == cudaErrorMemoryAllocation) {
      // What the pool keeps may be in pieces that fit nobody: give it back and ask once more.
      cudaGetLastError();
      FreeKept();
      cudaStreamSynchronize(memory_stream_);
      cudaMemPoolTrimTo(pool_, 0);
      error = cudaMallocFromPoolAsync(&pointer, bytes, pool_, memory_stream_);
    }
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      size_t free_bytes = 0;
      size_t all_bytes = 0;
      cudaMemGetInfo(&free_bytes, &all_bytes);
      return absl::ResourceExhaustedError(
          absl::StrCat(info_.name, " cannot allocate ", bytes, " bytes; ", free_bytes, " of ", all_bytes, " are free"));
    }
    FLASHBOB_RETURN_IF_ERROR(ToStatus(error, absl::StrCat("allocating ", bytes, " bytes on ", info_.name)));
    FLASHBOB_RETURN_IF_ERROR(ToStatus(cudaStreamSynchronize(memory_stream_), "allocating"));
    if (bytes <= kSmallBytes) {
      MutexLock lock(mutex_);
      small_.emplace(pointer, bytes);
    }
    return pointer;
  }

  void Free(void* pointer) override {
    if (pointer == nullptr || Keep(pointer)) return;
    const CurrentDevice current(device_);
    cudaFreeAsync(pointer, memory_stream_);
  }

  absl::StatusOr<void*> AllocateHost(size_t bytes) override {
    const CurrentDevice current(device_);
    FLASHBOB_RETURN_IF_ERROR(current.status());
    void* pointer = nullptr;
    const cudaError_t error = cudaHostAlloc(&pointer, bytes, cudaHostAllocPortable);
    if (error != cudaSuccess) cudaGetLastError();
    FLASHBOB_RETURN_IF_ERROR(ToStatus(error, absl::StrCat("allocating ", bytes, " bytes of page-locked memory")));
    return pointer;
  }

  void FreeHost(void* pointer) override {
    if (pointer == nullptr) return;
    const CurrentDevice current(device_);
    cudaFreeHost(pointer);
  }

  absl::Status CopyToDevice(void* device, const void* host, size_t bytes, Stream& stream) override {
    return Copy(device, host, bytes, cudaMemcpyHostToDevice, stream);
  }

  absl::Status CopyToHost(void* host, const void* device, size_t bytes, Stream& stream) override {
    return Copy(host, device, bytes, cudaMemcpyDeviceToHost, stream);
  }

  absl::Status CopyRowsToDevice(void* device, const void* host, const HostRows& rows, Stream& stream) override {
    return CopyRows({device, rows.row_bytes}, {const_cast<void*>(host), rows.pitch}, rows, cudaMemcpyHostToDevice,
                    stream);
  }

  absl::Status CopyRowsToHost(void* host, const HostRows& rows, const void* device, Stream& stream) override {
    return CopyRows({host, rows.pitch}, {const_cast<void*>(device), rows.row_bytes}, rows, cudaMemcpyDeviceToHost,
                    stream);
  }

  absl::Status CopyAllToDevice(const std::vector<HostCopy>& copies, Stream& stream) override {
    return CopyAll(copies, cudaMemcpyHostToDevice, stream);
  }

  absl::Status CopyAllToHost(const std::vector<HostCopy>& copies, Stream& stream) override {
    return CopyAll(copies, cudaMemcpyDeviceToHost, stream);
  }

 private:
  // A block of just so many bytes that was freed; null where there is none.
  void* TakeKept(size_t bytes) {
    MutexLock lock(mutex_);
    const auto found = kept_.find(bytes);
    if (found == kept_.end()) return nullptr;
    void* const pointer = found->second;
    kept_.erase(found);
    small_.emplace(pointer, bytes);
    return pointer;
  }

  bool Keep(void* pointer) {
    MutexLock lock(mutex_);
    const auto found = small_.find(pointer);
    if (found == small_.end()) return false;
    const bool kept = kept_.size() < kMostKept;
    if (kept) kept_.emplace(found->second, pointer);
    small_.erase(found);
    return kept;
  }

  void FreeKept() {
    MutexLock lock(mutex_);
    for (const auto& [bytes, pointer] : kept_) cudaFreeAsync(pointer, memory_stream_);
    kept_.clear();
  }

  struct Pitched {
    void* data;
    size_t pitch;
  };

  absl::StatusOr<cudaStream_t> StreamOf(const Stream& stream) const {
    const auto* cuda_stream = dynamic_cast<const CudaStream*>(&stream);
    if (cuda_stream != nullptr) return cuda_stream->get();
    return absl::InvalidArgumentError(absl::StrCat(info_.name, " was given a stream of another engine"));
  }

  absl::Status Copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, Stream& stream) {
    FLASHBOB_ASSIGN_OR_RETURN(const cudaStream_t on, StreamOf(stream));
    const CurrentDevice current(device_);
    FLASHBOB_RETURN_IF_ERROR(current.status());
    return ToStatus(cudaMemcpyAsync(to, from, bytes, kind, on), absl::StrCat("copying ", bytes, " bytes"));
  }

  // Page-locked memory has one address here and on every device.
  absl::Status CopyAll(const std::vector<HostCopy>& copies, cudaMemcpyKind kind, Stream& stream) {
    cuda::Copies together;
    for (const HostCopy& copy : copies) {
      void* const to = kind == cudaMemcpyHostToDevice ? copy.device : copy.host;
      void* const from = kind == cudaMemcpyHostToDevice ? copy.host : copy.device;
      const auto bits = reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from) | copy.bytes;
      if (bits % cuda::kCopyAlignment == 0 && copy.bytes <= kMostTogether && together.count < cuda::kMostCopies) {
        together.pieces[together.count++] = {to, from, copy.bytes};
      } else {
        FLASHBOB_RETURN_IF_ERROR(Copy(to, from, copy.bytes, kind, stream));
      }
    }
    FLASHBOB_ASSIGN_OR_RETURN(const cudaStream_t on, StreamOf(stream));
    const CurrentDevice current(device_);
    FLASHBOB_RETURN_IF_ERROR(current.status());
    return ToStatus(cuda::LaunchCopies(together, on), absl::StrCat("copying ", together.count, " small tensors"));
  }

  absl::Status CopyRows(Pitched to, Pitched from, const HostRows& rows, cudaMemcpyKind kind, Stream& stream) {
    FLASHBOB_ASSIGN_OR_RETURN(const cudaStream_t on, StreamOf(stream));
    const CurrentDevice current(device_);
    FLASHBOB_RETURN_IF_ERROR(current.status());
    return ToStatus(
        cudaMemcpy2DAsync(to.data, to.pitch, from.data, from.pitch, rows.row_bytes, rows.rows, kind, on),
        absl::StrCat("copying ", rows.rows, " rows of ", rows.row_bytes, " bytes, ", rows.pitch, " bytes apart"));
  }

  int device_;
  DeviceInfo info_;
  cuda::DeviceTraits traits_;
  cudaMemPool_t pool_;
  cudaStream_t memory_stream_;
  CudaEngineOptions options_;
  // A small request comes back for the block that the one before it freed, and need not wait for the pool.
  Mutex mutex_;
  std::map<void*, size_t> small_ FLASHBOB_GUARDED_BY(mutex_);      // those in use
  std::multimap<size_t, void*> kept_ FLASHBOB_GUARDED_BY(mutex_);  // those that are free
};

size_t ReserveOf(size_t free_bytes) { return std::max(kLeastReserveBytes, free_bytes / kReserveShare); }

absl::StatusOr<int> DeviceCount() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess) return count;
  cudaGetLastError();
  return ToStatus(error, "looking for GPUs");
}

}  // namespace

std::vector<int> CudaDevices() {
  const absl::StatusOr<int> count = DeviceCount();
  std::vector<int> devices;
  for (int device = 0; count.ok() && device < *count; ++device) {
    int major = 0;
    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
        major >= kOldestMajor) {
      devices.push_back(device);
    }
  }
  return devices;
}

std::string CudaDeviceModel(int device) {
  cudaDeviceProp properties;
  if (cudaGetDeviceProperties(&properties, device) == cudaSuccess) return properties.name;
  cudaGetLastError();
  return absl::StrCat("GPU ", device);
}

std::string WhyNoCudaDevices() {
  const absl::StatusOr<int> count = DeviceCount();
  if (!count.ok()) return std::string(count.status().message());
  if (*count == 0) return "no GPU is visible";
  if (CudaDevices().empty()) return absl::StrCat("none of ", *count, " GPUs has compute capability 8.0 or higher");
  return "";
}

absl::StatusOr<std::unique_ptr<Engine>> CreateCudaEngine(int device, const CudaEngineOptions& options) {
  const absl::StatusOr<int> count = DeviceCount();
  if (!count.ok() || device < 0 || device >= *count) {
    return absl::NotFoundError(count.ok() ? absl::StrCat("no GPU ", device, "; this process sees ", *count)
                                          : std::string(count.status().message()));
  }
  cudaDeviceProp properties;
  FLASHBOB_RETURN_IF_ERROR(ToStatus(cudaGetDeviceProperties(&properties, device), "reading a GPU's properties"));
  if (properties.major < kOldestMajor) {
    return absl::UnimplementedError(absl::StrCat("GPU ", device, ", ", properties.name, ", has compute capability ",
                                                 properties.major, ".", properties.minor, "; the oldest served is ",
                                                 kOldestMajor, ".0"));
  }
  FLASHBOB_ASSIGN_OR_RETURN(cuda::DeviceTraits traits, cuda::ReadDeviceTraits(device));
  if (options.hopper == HopperKernels::kRequired && !traits.hopper_kernels) {
    return absl::UnimplementedError(absl::StrCat("GPU ", device, ", ", properties.name, " of compute capability ",
                                                 properties.major, ".", properties.minor,
                                                 ", has no Hopper kernels in this build; they need 9.0 and sm_90a"));
  }
  if (options.hopper == HopperKernels::kNever) traits.hopper_kernels = false;
  traits.shared_bytes_per_block = std::min(traits.shared_bytes_per_block, options.max_shared_bytes);
  const CurrentDevice current(device);
  FLASHBOB_RETURN_IF_ERROR(current.status());

  cudaMemPoolProps pool_properties = {};
  pool_properties.allocType = cudaMemAllocationTypePinned;
  pool_properties.location.type = cudaMemLocationTypeDevice;
  pool_properties.location.id = device;
  cudaMemPool_t pool = nullptr;
  FLASHBOB_RETURN_IF_ERROR(ToStatus(cudaMemPoolCreate(&pool, &pool_properties), "creating a memory pool"));
  // Keep what was freed: giving it back to the driver would cost milliseconds a request.
  uint64_t keep = UINT64_MAX;
  FLASHBOB_RETURN_IF_ERROR(
      ToStatus(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep), "setting up a memory pool"));
  cudaStream_t memory_stream = nullptr;
  FLASHBOB_RETURN_IF_ERROR(
      ToStatus(cudaStreamCreateWithFlags(&memory_stream, cudaStreamNonBlocking), "creating a stream"));

  DeviceInfo info;
  info.name = absl::StrCat("cuda:", device);
  info.model = properties.name;
  info.compute_units = properties.multiProcessorCount;
  info.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  size_t free_bytes = 0;
  size_t all_bytes = 0;
  FLASHBOB_RETURN_IF_ERROR(ToStatus(cudaMemGetInfo(&free_bytes, &all_bytes), "reading a GPU's free memory"));
  info.usable_bytes = static_cast<int64_t>(free_bytes - std::min(free_bytes, ReserveOf(free_bytes)));
  // What the tensor core kernels sustain on one multiprocessor of an H200, for estimates before anything ran.
  constexpr double kFlopsPerMultiprocessor = 2.0e12;
  info.flops_per_second = kFlopsPerMultiprocessor * properties.multiProcessorCount;
  return std::make_unique<CudaEngine>(device, std::move(info), traits, pool, memory_stream, options);
}

}  // namespace flashbob
