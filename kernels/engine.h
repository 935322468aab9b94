// Engine: turns a Computation into a plan of bounded slices and runs them on one device.
//
//   Computation --MakePlan--> Plan: slice 0, 1, ... n-1, workspace size
//   for each slice, in order: engine.Launch(plan, slice, tensors, workspace, stream)
//   stream.Synchronize()      -> outputs are written
//
// A slice is about 20 ms of device work or less and needs nothing but the inputs and what earlier slices of its plan
// wrote, so a scheduler may put slices of other plans between them, and stop between them. Launch never allocates and
// never waits for the device: all memory that it touches is the caller's. (An engine whose device is the CPU runs the
// slice within Launch.)
//
// Thread safety: an engine's methods may be called from any thread; the slices of one plan one at a time, in order,
// with the same tensors, workspace and stream. Plans are immutable.
#ifndef FLASHBOB_KERNELS_ENGINE_H_
#define FLASHBOB_KERNELS_ENGINE_H_

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/computation.h"

namespace flashbob {

// Device addresses of a computation's inputs and wanted outputs, each contiguous in the problem's layout and aligned to
// kTensorAlignment. Tensors of zero bytes may be null.
class TensorPointers {
 public:
  void Set(TensorName name, void* pointer) { pointers_[static_cast<size_t>(name)] = pointer; }
  void SetInput(TensorName name, const void* pointer) { Set(name, const_cast<void*>(pointer)); }
  void* Get(TensorName name) const { return pointers_[static_cast<size_t>(name)]; }

 private:
  std::array<void*, kNumTensorNames> pointers_ = {};
};

// Of tensors and workspaces, in bytes.
inline constexpr size_t kTensorAlignment = 256;

// The order in which a device does its work: work on one stream runs in the order it was launched.
class Stream {
 public:
  virtual ~Stream() = default;
  // Waits until all that was launched on this stream is done. Not OK where the device failed.
  virtual absl::Status Synchronize() = 0;
};

// What an engine will do for one computation.
class Plan {
 public:
  virtual ~Plan() = default;
  const Computation& computation() const { return computation_; }
  // Device memory that the slices share, besides inputs and outputs, in bytes.
  virtual size_t workspace_bytes() const = 0;
  virtual int num_slices() const = 0;
  // Share of computation().flops() that a slice does; over all slices they add up to it. Never negative.
  virtual double slice_flops(int slice) const = 0;

 protected:
  explicit Plan(Computation computation) : computation_(std::move(computation)) {}

 private:
  Computation computation_;
};

// Rows of bytes in host memory, `pitch` bytes from the begin of one to that of the next.
struct HostRows {
  size_t row_bytes = 0;
  size_t rows = 0;
  size_t pitch = 0;
};

// One of several copies between host and device memory.
struct HostCopy {
  void* device = nullptr;
  void* host = nullptr;
  size_t bytes = 0;
};

struct DeviceInfo {
  std::string name;             // "cpu", "cuda:0"
  std::string model;            // what the hardware calls itself
  int compute_units = 0;        // cores or multiprocessors
  int64_t memory_bytes = 0;     // of the device, in all
  int64_t usable_bytes = 0;     // of those, what this process may count on: others use the device too
  double flops_per_second = 0;  // a first guess of the sustained rate, for estimates before anything ran
};

class Engine {
 public:
  virtual ~Engine() = default;

  virtual const DeviceInfo& device() const = 0;

  // The plan of a computation. UNIMPLEMENTED, naming the nearest that is served, where this engine cannot serve it;
  // FAILED_PRECONDITION or RESOURCE_EXHAUSTED, with the numbers, where it is larger than this engine can ever do.
  virtual absl::StatusOr<std::unique_ptr<const Plan>> MakePlan(const Computation& computation) const = 0;

  // Starts a slice. `workspace` has plan.workspace_bytes() bytes, contents undefined before slice 0.
  virtual absl::Status Launch(const Plan& plan, int slice, const TensorPointers& tensors, void* workspace,
                              Stream& stream) = 0;

  virtual absl::StatusOr<std::unique_ptr<Stream>> CreateStream() = 0;

  // Whether host memory is device memory: then nothing needs to be copied, and tensors need no more than the alignment
  // of their elements.
  virtual bool unified_memory() const = 0;
  // Device memory, aligned to kTensorAlignment; RESOURCE_EXHAUSTED with the numbers where there is not enough.
  virtual absl::StatusOr<void*> Allocate(size_t bytes) = 0;
  virtual void Free(void* pointer) = 0;
  // Host memory that this device copies from and to at full speed (page locked on a GPU).
  virtual absl::StatusOr<void*> AllocateHost(size_t bytes) = 0;
  virtual void FreeHost(void* pointer) = 0;
  // Copies on a stream. The host side must stay as it is until the stream has passed them.
  virtual absl::Status CopyToDevice(void* device, const void* host, size_t bytes, Stream& stream) = 0;
  virtual absl::Status CopyToHost(void* host, const void* device, size_t bytes, Stream& stream) = 0;
  // The same of rows, which in device memory lie one after the other. Here: row by row.
  virtual absl::Status CopyRowsToDevice(void* device, const void* host, const HostRows& rows, Stream& stream);
  virtual absl::Status CopyRowsToHost(void* host, const HostRows& rows, const void* device, Stream& stream);
  // Several at a time, whose host memory is of AllocateHost, on the stream of the work that they are for: small ones
  // may be work of the same kind, which waits for whatever else computes. Here: one by one.
  virtual absl::Status CopyAllToDevice(const std::vector<HostCopy>& copies, Stream& stream);
  virtual absl::Status CopyAllToHost(const std::vector<HostCopy>& copies, Stream& stream);
};

// Runs a computation from host memory to host memory: plans, allocates, copies (where the engine needs that), launches
// every slice, waits. `tensors` are host addresses, aligned or not. For tests, the CLI and embedders without a
// scheduler. `progress`, where given, gets the FLOPs done after each slice; the device is then waited for after each.
absl::Status RunToCompletion(Engine& engine, const Computation& computation, const TensorPointers& tensors,
                             const std::function<void(double done_flops)>& progress = {});

}  // namespace flashbob

#endif  // FLASHBOB_KERNELS_ENGINE_H_
