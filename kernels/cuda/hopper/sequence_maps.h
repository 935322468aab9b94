// The maps of packed sequences, made on the device from one map a tensor.
#ifndef FLASHBOB_KERNELS_CUDA_HOPPER_SEQUENCE_MAPS_H_
#define FLASHBOB_KERNELS_CUDA_HOPPER_SEQUENCE_MAPS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/hopper/mapped_args.h"

namespace flashbob::cuda::hopper {

struct SequenceMapArgs {
  CUtensorMap maps[kMaxMaps];  // of all rows
  const void* data[kMaxMaps];
  int64_t row_bytes[kMaxMaps];
  uint32_t keys;  // bit m: rows of tensor m are keys
  int32_t count;  // of tensors
  const SequenceInfo* sequences;
  int32_t batch;
  CUtensorMap* to;  // [batch][kMaxMaps]
};

// Map m of every sequence: that of its rows alone.
cudaError_t MakeSequenceMaps(const SequenceMapArgs& args, cudaStream_t stream);

}  // namespace flashbob::cuda::hopper

#endif  // FLASHBOB_KERNELS_CUDA_HOPPER_SEQUENCE_MAPS_H_
