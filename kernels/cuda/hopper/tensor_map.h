// Tensor maps: how the copy engine of sm_90 sees a tensor. Made on the host, passed to kernels by value.
#ifndef FLASHBOB_KERNELS_CUDA_HOPPER_TENSOR_MAP_H_
#define FLASHBOB_KERNELS_CUDA_HOPPER_TENSOR_MAP_H_

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/hopper/bob_params.h"

namespace flashbob::cuda::hopper {

// A tensor [batch][heads][rows][columns] of 16-bit elements, innermost contiguous, strides in elements (multiples of
// 8), data aligned to 16 bytes.
struct MappedTensor {
  void* data = nullptr;
  int64_t columns = 0;
  int64_t rows = 0;
  int64_t heads = 0;
  int64_t batch = 0;
  int64_t row_stride = 0;
  int64_t head_stride = 0;
  int64_t batch_stride = 0;
};

// The map of `tensor` with boxes of `box_rows` x 64 columns (tma.cuh). The driver is asked through the runtime, so that
// nothing links against it. cudaErrorInvalidValue where the driver refuses the map.
cudaError_t MakeTensorMap(HalfType type, const MappedTensor& tensor, int32_t box_rows, CUtensorMap* map);

}  // namespace flashbob::cuda::hopper

#endif  // FLASHBOB_KERNELS_CUDA_HOPPER_TENSOR_MAP_H_
