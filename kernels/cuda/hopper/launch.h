// How kernels of sm_90a are launched: tensor maps are made of PassArgs' tensors and passed by value.
//
// Launches neither allocate nor wait. The driver is asked through the runtime, so that nothing links against it.
#ifndef FLASHBOB_KERNELS_CUDA_HOPPER_LAUNCH_H_
#define FLASHBOB_KERNELS_CUDA_HOPPER_LAUNCH_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <initializer_list>

#include "kernels/cuda/hopper/mapped_args.h"
#include "kernels/cuda/pass.h"

namespace flashbob::cuda::hopper {

// A tensor of a kernel: rows of 16-bit elements, innermost contiguous, strides multiples of 8 elements, data aligned to
// 16 bytes. Boxes are `box_rows` x 64 columns (tile/hopper/tma.cuh).
struct MappedTensor {
  TensorView view;
  bool keys;      // rows are keys of the kv heads, else queries of the heads
  bool probed;    // has a probe axis where the problem has one
  int32_t width;  // columns
  int32_t box_rows;
};

// Bytes of PassArgs::sequence_maps.
inline size_t SequenceMapBytes(int64_t sequences) {
  return static_cast<size_t>(sequences) * kMaxMaps * sizeof(CUtensorMap);
}

// Launches `ctas` of kernel.function, a __global__ void(const MappedArgs), on maps of `tensors`, at most kMaxMaps.
cudaError_t LaunchMapped(const PassKernel& kernel, HalfType type, const PassArgs& args,
                         std::initializer_list<MappedTensor> tensors, int64_t ctas, cudaStream_t stream);

}  // namespace flashbob::cuda::hopper

#endif  // FLASHBOB_KERNELS_CUDA_HOPPER_LAUNCH_H_
