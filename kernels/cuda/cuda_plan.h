// CudaPlan: which passes a computation takes on a GPU, cut into launches and slices, and where its workspace lies.
//
//   forward (where o and lse are not given) -> rows or row dots -> zero gQ -> columns -> finish gQ
//
// A pass is one launch where it takes no longer than a slice, or an eighth more: the rest would be a crumb. A longer
// one is cut between items; where one item alone is longer (a row block over a million keys), all items of a wave are
// cut along their walk, and their accumulators stay in workspace from launch to launch. Where items are too few to fill
// the device, several CTAs share each (parts.h).
#ifndef FLASHBOB_KERNELS_CUDA_CUDA_PLAN_H_
#define FLASHBOB_KERNELS_CUDA_CUDA_PLAN_H_

#include <cuda_runtime_api.h>

#include <memory>
#include <vector>

#include "kernels/cuda/kernel_set.h"
#include "kernels/cuda/pass.h"
#include "kernels/engine.h"

namespace flashbob::cuda {

enum class PassKind : uint8_t { kForward, kRowDots, kRows, kZeroSums, kColumns, kFinish };

class CudaPlan : public Plan {
 public:
  // `slice_seconds`: how long a slice should take at most, by the kernels' estimated rates; some take an eighth more.
  static absl::StatusOr<std::unique_ptr<const CudaPlan>> Create(const Computation& computation,
                                                                const DeviceTraits& device, double slice_seconds);

  size_t workspace_bytes() const override { return workspace_bytes_; }
  int num_slices() const override { return static_cast<int>(slices_.size()); }
  double slice_flops(int slice) const override { return slices_[static_cast<size_t>(slice)].flops; }

  absl::Status Launch(int slice, const TensorPointers& tensors, void* workspace, cudaStream_t stream) const;

 private:
  // Bytes [offset, offset + bytes) of the workspace.
  struct Region {
    size_t offset = 0;
    size_t bytes = 0;
  };
  struct LaunchStep {
    PassKind pass;
    int64_t item_begin = 0;
    int64_t items = 0;
    int64_t tile_begin = 0;
    int64_t tile_end = INT64_MAX;
    int32_t parts = 1;  // CTAs an item
    double flops = 0;
    double seconds = 0;
  };
  struct Slice {
    size_t begin = 0;  // of steps_
    size_t end = 0;
    double flops = 0;
    double seconds = 0;
  };
  CudaPlan(const Computation& computation, const DeviceTraits& device);

  void ChoosePasses();
  void MakeTables();
  void LayOutWorkspace();
  // Rows of gq_sum per head and probe, over all sequences, and columns: padded where sums lie in fragments.
  int64_t SumRows() const;
  int64_t SumColumns() const;
  void CutPass(PassKind pass, double flops, double slice_seconds);
  void CutSlices(double slice_seconds);

  const PassKernel& KernelOf(PassKind pass) const;
  // Whether a pass over rows takes a tile of the column pass's queries a CTA, sequence by sequence.
  bool InTiles(PassKind pass) const;
  // What does not depend on addresses.
  PassArgs ShapeArgs(PassKind pass) const;
  PassArgs Args(PassKind pass, const TensorPointers& tensors, char* workspace) const;
  TensorView View(TensorName name, void* data) const;
  // Rows of `width` elements, padded as those of gq_sum are.
  TensorView PaddedView(void* data, int64_t width) const;
  absl::Status ZeroSums(char* workspace, cudaStream_t stream) const;
  absl::Status LaunchOne(const LaunchStep& step, PassArgs args, char* workspace, cudaStream_t stream) const;

  DeviceTraits device_;
  KernelSet kernels_;
  size_t real_bytes_ = 4;
  std::vector<PassKind> passes_;
  bool recompute_ = false;  // o and lse
  bool packed_ = false;
  TensorSet zero_outputs_;  // no term reaches them

  // Tables of a packed batch: one a pass that walks sequences, [batch] entries each. Not in page-locked memory: to
  // allocate that takes longer than all the rest of a plan, and to free it may wait for the device.
  std::vector<SequenceInfo> tables_;
  int64_t blocks_[4] = {};  // per head, of each table's pass

  Region table_region_;
  Region maps_region_;  // tensor maps of packed sequences
  Region lse_region_;
  Region scalars_region_;
  Region sum_region_;  // o while it is needed, then gq_sum
  Region turn_region_;
  Region ticket_region_;
  Region arrivals_region_;
  Region state_region_;
  size_t workspace_bytes_ = 0;

  std::vector<LaunchStep> steps_;
  std::vector<Slice> slices_;
};

}  // namespace flashbob::cuda

#endif  // FLASHBOB_KERNELS_CUDA_CUDA_PLAN_H_
