// How many CTAs share the walk of an item where items are too few, or too uneven, to fill a device.
#ifndef FLASHBOB_KERNELS_CUDA_PARTS_H_
#define FLASHBOB_KERNELS_CUDA_PARTS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace flashbob::cuda {

// The pass that is to be divided.
struct DivisiblePass {
  std::vector<int64_t> tiles = {};  // of every item's walk, in the order of the launch
  double tile_seconds = 0;          // of one CTA
  int64_t wave = 1;                 // CTAs that run at once
  size_t state_bytes = 0;           // that a part leaves for the last of its item to add up
};

// Parts an item, 1 where dividing gains nothing. All parts' states together stay within `most_state_bytes`.
int32_t ChooseParts(const DivisiblePass& pass, size_t most_state_bytes);

// How long the pass takes where each item is divided into `parts`.
double SecondsInParts(const DivisiblePass& pass, int32_t parts);

}  // namespace flashbob::cuda

#endif  // FLASHBOB_KERNELS_CUDA_PARTS_H_
