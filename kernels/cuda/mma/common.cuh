// What the tensor-core kernels share: tiles in shared memory, fragments, the mask inside a tile.
//
// Products are m16n8k16 with fp32 sums. A fragment c[4] of a 16 x 8 product lies in a warp like this, with g = lane / 4
// and t = lane % 4: c[0], c[1] at row g, columns 2t, 2t + 1; c[2], c[3] at row g + 8. Two neighbouring fragments of a
// product, packed to 16 bits, are the left operand of a k16 step of the next product: scores stay in registers for
// that.
//
// Tiles in shared memory are row major with 8 elements of padding a row: the eight rows of an ldmatrix then lie in
// different banks, and every address is a constant past the lane's own.
#ifndef FLASHBOB_KERNELS_CUDA_MMA_COMMON_CUH_
#define FLASHBOB_KERNELS_CUDA_MMA_COMMON_CUH_

#include "kernels/cuda/fragment_sums.cuh"
#include "kernels/cuda/pass.h"
#include "kernels/cuda/tile/ptx.cuh"
#include "kernels/cuda/walk.h"

namespace flashbob::cuda::mma {

inline constexpr int kPadding = 8;
inline constexpr float kLog2E = 1.44269504088896341f;

struct Lane {
  int lane = static_cast<int>(threadIdx.x) % 32;
  int warp = static_cast<int>(threadIdx.x) / 32;
  int g = lane / 4;
  int t = lane % 4;
};

// Byte offset of a lane's row for ldmatrix, in a tile of kPitch elements a row. `Plain`: 16 x 16 as stored, the left
// operand [m][k] as it is, or the right operand [k][n] through the transposing load. `Crossed`: the middle two matrices
// swapped, for the right operand [n][k] as it is, or the left operand [k][m] through the transposing load.
template <int kPitch>
__device__ inline uint32_t PlainOffset(const Lane& lane) {
  return static_cast<uint32_t>((lane.lane % 16) * kPitch + lane.lane / 16 * 8) * 2;
}
template <int kPitch>
__device__ inline uint32_t CrossedOffset(const Lane& lane) {
  return static_cast<uint32_t>((lane.lane % 8 + lane.lane / 16 * 8) * kPitch + lane.lane / 8 % 2 * 8) * 2;
}

// Copies tiles of kRows x kDim elements of one head of a tensor to shared memory: zeros past the sequence's end and
// past the tensor's columns, and for a tensor that is absent. A thread copies one 16-byte chunk of every kRowStep-th
// row, so that it keeps nothing but its address in the head's first row.
template <int kThreads, int kRows, int kDim>
class TileLoader {
 public:
  TileLoader() = default;
  // `start`: rows before the head's first in memory.
  __device__ TileLoader(const TensorView& view, int32_t probe, int32_t batch, int32_t head, int64_t start,
                        int32_t columns) {
    const bool absent = view.data == nullptr;
    source_ = static_cast<const char*>(view.data) + RowOffset(view, probe, batch, head, start) * 2 + Chunk() * 16;
    pitch_ = absent ? 0 : static_cast<int32_t>(view.row) * 2;
    bytes_ = absent || Chunk() * 8 >= columns ? 0 : 16;
    source_ += static_cast<int64_t>(First()) * pitch_;
  }

  // Starts copying the tile of rows [row, row + kRows) of a head of `length` rows.
  __device__ void Load(uint32_t to, int32_t row, int32_t length) const {
    const char* source = source_ + static_cast<int64_t>(row) * pitch_;
    to += static_cast<uint32_t>(First() * kPitch + Chunk() * 8) * 2;
    if (row + kRows <= length) {
#pragma unroll
      for (int i = 0; i < kRows / kRowStep; ++i) {
        tile::CopyAsync16(to + i * kRowStep * kPitch * 2, source + static_cast<int64_t>(i * kRowStep) * pitch_, bytes_);
      }
    } else {
#pragma unroll 1
      for (int i = 0; i < kRows / kRowStep; ++i) {
        const bool inside = row + First() + i * kRowStep < length;
        tile::CopyAsync16(to + i * kRowStep * kPitch * 2, source + static_cast<int64_t>(i * kRowStep) * pitch_,
                          inside ? bytes_ : 0);
      }
    }
  }

 private:
  static constexpr int kChunks = kDim / 8;  // of a row
  static constexpr int kRowStep = kThreads / kChunks;
  static constexpr int kPitch = kDim + kPadding;
  static_assert(kThreads % kChunks == 0 && kRows % kRowStep == 0);

  __device__ static int Chunk() { return static_cast<int>(threadIdx.x) % kChunks; }
  __device__ static int First() { return static_cast<int>(threadIdx.x) / kChunks; }

  const char* source_;
  int32_t pitch_;  // bytes
  int32_t bytes_;
};

// c0, c1 += a b of two neighbouring right fragments, as one ldmatrix gives them.
template <typename T>
__device__ inline void MultiplyPair(float (&c0)[4], float (&c1)[4], const uint32_t (&a)[4], const uint32_t (&b)[4]) {
  tile::Multiply<T>(c0, a, b[0], b[1]);
  tile::Multiply<T>(c1, a, b[2], b[3]);
}

// The mask inside a tile as differences: key - query in [low, high], key < keys.
struct TileMask {
  int32_t low;
  int32_t high;
  int32_t keys;

  __device__ explicit TileMask(const BandMask& mask) {
    constexpr int64_t kFar = int64_t{1} << 30;  // no difference of two indices is larger
    const int64_t lowest = mask.left < 0 ? -kFar : mask.shift - mask.left;
    const int64_t highest = mask.right < 0 ? kFar : mask.shift + mask.right;
    low = static_cast<int32_t>(lowest < -kFar ? -kFar : lowest > kFar ? kFar : lowest);
    high = static_cast<int32_t>(highest > kFar ? kFar : highest < -kFar ? -kFar : highest);
    keys = static_cast<int32_t>(mask.key_len);
  }
  __device__ bool Visible(int32_t query, int32_t key) const {
    return key - query >= low && key - query <= high && key < keys;
  }
};

// The keys that all queries of a non-empty range see, and the queries that see all keys of one: tiles within need no
// mask.
__device__ inline IndexRange KeysOfAll(const BandMask& mask, IndexRange queries) {
  return {mask.KeysOf(queries.end - 1).begin, mask.KeysOf(queries.begin).end};
}
__device__ inline IndexRange QueriesOfAll(const BandMask& mask, IndexRange keys) {
  return {mask.QueriesOf(keys.end - 1).begin, mask.QueriesOf(keys.begin).end};
}

// Two neighbouring elements of a tensor of T, or of fp32 where it holds accumulators; and the other way.
template <typename T>
__device__ inline float2 LoadPair(const void* data, int64_t offset, bool accumulator = false) {
  if (accumulator) return *reinterpret_cast<const float2*>(static_cast<const float*>(data) + offset);
  return tile::Unpack<T>(*reinterpret_cast<const uint32_t*>(static_cast<const T*>(data) + offset));
}
template <typename T>
__device__ inline void StorePair(void* data, int64_t offset, float low, float high, bool accumulator = false) {
  if (accumulator) {
    *reinterpret_cast<float2*>(static_cast<float*>(data) + offset) = {low, high};
  } else {
    *reinterpret_cast<uint32_t*>(static_cast<T*>(data) + offset) = tile::Pack<T>(low, high);
  }
}

// The sum over the four lanes that share a row.
__device__ inline float SumOverRow(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  x += __shfl_xor_sync(0xffffffffu, x, 2);
  return x;
}

// Accumulators of kTilesM x kTilesN fragments.
template <int kTilesM, int kTilesN>
using Sums = float[kTilesM][kTilesN][4];

template <int kTilesM, int kTilesN, typename Function>
__device__ inline void ForEach(Sums<kTilesM, kTilesN>& sums, Function function) {
#pragma unroll
  for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
    for (int n = 0; n < kTilesN; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) function(m, n, i, sums[m][n][i]);
    }
  }
}

template <int kTilesM, int kTilesN>
__device__ inline void Clear(Sums<kTilesM, kTilesN>& sums) {
  ForEach<kTilesM, kTilesN>(sums, [](int, int, int, float& x) { x = 0; });
}

// Accumulators to and from the state of a split item, in thread order.
__device__ inline float* StateOf(const PassArgs& args, int64_t slot, size_t bytes) {
  return reinterpret_cast<float*>(static_cast<char*>(args.state) + slot * bytes) + threadIdx.x;
}
template <int kThreads, int kTilesM, int kTilesN>
__device__ inline float* SaveState(float* state, Sums<kTilesM, kTilesN>& sums) {
  ForEach<kTilesM, kTilesN>(sums, [&](int, int, int, float& x) {
    *state = x;
    state += kThreads;
  });
  return state;
}
template <int kThreads, int kTilesM, int kTilesN>
__device__ inline float* LoadState(float* state, Sums<kTilesM, kTilesN>& sums) {
  ForEach<kTilesM, kTilesN>(sums, [&](int, int, int, float& x) {
    x = *state;
    state += kThreads;
  });
  return state;
}

template <typename Config, int kOwned, int kStreamed>
PassKernel MakePassKernel(const char* name, const void* function) {
  constexpr double kFlopsPerSm = 2.0e12;  // on an H200
  return {
      name,        kOwned,  kStreamed, Config::kThreads, Config::kCtasPerSm, Config::kSharedBytes, Config::kStateBytes,
      kFlopsPerSm, function};
}

}  // namespace flashbob::cuda::mma

#endif  // FLASHBOB_KERNELS_CUDA_MMA_COMMON_CUH_
