#include <algorithm>
#include <bit>

#include "kernels/cuda/hopper/bob_params.h"

namespace flashbob::cuda::hopper {

Schedule MakeSchedule(int64_t heads, int64_t owned_rows) {
  // The CTAs of a head stream the same tiles at about the same time, so what a moment needs of a head is small whatever
  // its length. Many heads at once leave few CTAs a head to share a tile; few leave a long tail where walks differ in
  // length.
  constexpr int64_t kMostHeads = 32;
  const int64_t chunks = std::max<int64_t>((heads + kMostHeads - 1) / kMostHeads, 1);
  Schedule schedule;
  schedule.heads = static_cast<int32_t>(heads);
  schedule.heads_per_chunk = static_cast<int32_t>(std::max<int64_t>((heads + chunks - 1) / chunks, 1));
  schedule.blocks = static_cast<int32_t>((owned_rows + kOwnedRows - 1) / kOwnedRows);
  return schedule;
}

int32_t PowerShift(HalfType type, int64_t key_len) {
  if (type == HalfType::kBFloat16) return 0;
  // P of a full row is about 1 / key_len, and fp16 keeps 11 bits down to 2^-14 only. P itself reaches 1, and its
  // products with G and dP more: 2^8 leaves them as much again before fp16 ends at 2^16.
  const int32_t bits = static_cast<int32_t>(std::bit_width(static_cast<uint64_t>(std::max<int64_t>(key_len, 1))));
  return std::clamp(bits - 9, 0, 8);
}

}  // namespace flashbob::cuda::hopper
