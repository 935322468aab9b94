// MappedArgs: what a kernel of sm_90a takes, by value: PassArgs, and the tensors as the copy engine sees them.
//
// Map m is of the m-th tensor that the kernel names to its launch (launch.h). In a packed batch every sequence has its
// own maps, so that rows past its end read as zeros and are not written; they lie in PassArgs::sequence_maps.
#ifndef FLASHBOB_KERNELS_CUDA_HOPPER_MAPPED_ARGS_H_
#define FLASHBOB_KERNELS_CUDA_HOPPER_MAPPED_ARGS_H_

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/pass.h"
#include "kernels/mask.h"

namespace flashbob::cuda::hopper {

enum class HalfType : uint8_t { kBFloat16, kFloat16 };

inline constexpr int32_t kMaxMaps = 10;

// Query rows of a tile of the second-order column pass. Row scalars and gq_sum are padded to whole tiles, a sequence.
FLASHBOB_HOST_DEVICE constexpr int32_t ColumnQueries(int32_t head_dim) { return head_dim == 64 ? 64 : 32; }
// The same of the first-order one, whose sums of dQ lie in the other's tiles all the same.
inline constexpr int32_t kFirstColumnQueries = 64;

// Floats of the row scalars per row. Rows come in blocks of 32: 32 of L log2(e) - power_shift (+inf where P must
// be 0), then 32 of D, of c, of r. PassArgs::row_scalars counts rows.
inline constexpr int32_t kRowScalars = 4;

struct MappedArgs {
  PassArgs pass;
  CUtensorMap maps[kMaxMaps];
  uint32_t absent = 0;  // bit m: tensor m is absent and reads as zeros
  int32_t group = 1;    // query heads a kv head
  float scale = 1;
  float score_scale = 1;  // scale * log2(e)
};

}  // namespace flashbob::cuda::hopper

#endif  // FLASHBOB_KERNELS_CUDA_HOPPER_MAPPED_ARGS_H_
