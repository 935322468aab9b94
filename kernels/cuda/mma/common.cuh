// What the tensor-core kernels share: tiles in shared memory, fragments, the mask inside a tile.
//
// Products of bf16 and fp16 are m16n8k16, of float (TF32) m16n8k8: 32 bytes of the contracted dimension, with fp32
// sums. A fragment c[4] of a 16 x 8 product lies in a warp like this, with g = lane / 4 and t = lane % 4: c[0], c[1] at
// row g, columns 2t, 2t + 1; c[2], c[3] at row g + 8. Scores stay in registers as left operands of the next product:
// two neighbouring fragments, packed to 16 bits, are one, and so is one fragment of TF32, whose columns then come in
// the order 0, 2, 4, 6, 1, 3, 5, 7; the right operand's rows are loaded in the same order.
//
// Tiles in shared memory are row major with 16 bytes of padding a row: the eight rows of an ldmatrix then lie in
// different banks, and every address is a constant past the lane's own.
//
// Kernels come in two flavours. The fast ones take rows that begin at multiples of 16 bytes and know their terms when
// they are built; the general ones (kGeneral) take any rows and find out which tangents there are when they run.
#ifndef FLASHBOB_KERNELS_CUDA_MMA_COMMON_CUH_
#define FLASHBOB_KERNELS_CUDA_MMA_COMMON_CUH_

#include <type_traits>

#include "kernels/cuda/fragment_sums.cuh"
#include "kernels/cuda/pass.h"
#include "kernels/cuda/tile/ptx.cuh"
#include "kernels/cuda/walk.h"

namespace flashbob::cuda::mma {

inline constexpr int kPadding = 16;  // bytes
inline constexpr float kLog2E = 1.44269504088896341f;

// Elements of the contracted dimension that one product takes.
template <typename T>
inline constexpr int kStep = 32 / sizeof(T);
template <typename T>
inline constexpr bool kIsTf32 = sizeof(T) == 4;

struct Lane {
  int lane = static_cast<int>(threadIdx.x) % 32;
  int warp = static_cast<int>(threadIdx.x) / 32;
  int g = lane / 4;
  int t = lane % 4;
};

// Byte offset of a lane's row for ldmatrix, in a tile of kPitch bytes a row. `Plain`: 16 rows of 32 bytes, the left
// operand [m][k] as it is, or the 16-bit right operand [k][n] through the transposing load. `Crossed`: the middle two
// matrices swapped, for the right operand [n][k] as it is, or the 16-bit left operand [k][m] through the transposing
// load.
template <int kPitch>
__device__ inline uint32_t PlainOffset(const Lane& lane) {
  return static_cast<uint32_t>((lane.lane % 16) * kPitch + lane.lane / 16 * 16);
}
template <int kPitch>
__device__ inline uint32_t CrossedOffset(const Lane& lane) {
  return static_cast<uint32_t>((lane.lane % 8 + lane.lane / 16 * 8) * kPitch + lane.lane / 8 % 2 * 16);
}
// Of operands that lie transposed. ldmatrix transposes 16-bit elements; TF32 takes four loads a lane, of rows 2t and
// 2t + 1 and columns g and g + 8: the padding puts the lanes into different banks.
template <typename T, int kPitch>
__device__ inline uint32_t TransposedRightOffset(const Lane& lane) {
  return kIsTf32<T> ? static_cast<uint32_t>(lane.t * 2 * kPitch + lane.g * 4) : PlainOffset<kPitch>(lane);
}
template <typename T, int kPitch>
__device__ inline uint32_t TransposedLeftOffset(const Lane& lane) {
  return kIsTf32<T> ? static_cast<uint32_t>(lane.t * 2 * kPitch + lane.g * 4) : CrossedOffset<kPitch>(lane);
}

// A left operand, or two neighbouring right operands, as they lie.
template <typename T>
__device__ inline void LoadOperand(uint32_t (&to)[4], uint32_t address) {
  tile::LoadMatrices(to, address);
  if constexpr (kIsTf32<T>) {
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = tile::RoundToTf32(to[i]);
  }
}
// Two neighbouring right operands that lie transposed.
template <typename T, int kPitch>
__device__ inline void LoadTransposedRight(uint32_t (&to)[4], uint32_t address) {
  if constexpr (kIsTf32<T>) {
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = tile::RoundToTf32(tile::LoadShared(address + i % 2 * kPitch + i / 2 * 32));
  } else {
    tile::LoadMatricesTransposed(to, address);
  }
}
// A left operand that lies transposed, of elements that are rounded already.
template <typename T, int kPitch>
__device__ inline void LoadTransposedLeft(uint32_t (&to)[4], uint32_t address) {
  if constexpr (kIsTf32<T>) {
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = tile::LoadShared(address + i / 2 * kPitch + i % 2 * 32);
  } else {
    tile::LoadMatricesTransposed(to, address);
  }
}

// Scores of kColumns columns as left operands: elements 2 half, 2 half + 1 of fragment n, rounded.
template <typename T, int kColumns>
using LeftOperands = uint32_t[kColumns / kStep<T>][4];

template <typename T, int kSteps>
__device__ inline void SetLeft(uint32_t (&left)[kSteps][4], int n, int half, float low, float high) {
  if constexpr (kIsTf32<T>) {
    left[n][half] = tile::RoundToTf32(low);
    left[n][2 + half] = tile::RoundToTf32(high);
  } else {
    left[n / 2][n % 2 * 2 + half] = tile::Pack<T>(low, high);
  }
}
// What SetLeft set, to shared memory as two neighbouring elements of a row.
template <typename T, int kSteps>
__device__ inline void StoreLeft(uint32_t address, const uint32_t (&left)[kSteps][4], int n, int half) {
  if constexpr (kIsTf32<T>) {
    tile::StoreShared2(address, left[n][half], left[n][2 + half]);
  } else {
    tile::StoreShared(address, left[n / 2][n % 2 * 2 + half]);
  }
}

// Calls function(std::bool_constant<flag>) for a flag that is always set (kAlways), never (not even kMayBe), or known
// when the kernel runs.
template <bool kMayBe, bool kAlways, typename Function>
__device__ inline void WithFlag(bool flag, Function function) {
  if constexpr (kAlways) {
    function(std::true_type{});
  } else if constexpr (kMayBe) {
    if (flag) {
      function(std::true_type{});
    } else {
      function(std::false_type{});
    }
  } else {
    function(std::false_type{});
  }
}

// Eight 16-bit elements, one by one; zeros past the first `count`.
__device__ inline void CopyElements(uint32_t to, const char* source, int count) {
  uint32_t words[4] = {};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (i < count) words[i / 2] |= uint32_t{reinterpret_cast<const uint16_t*>(source)[i]} << i % 2 * 16;
  }
  tile::StoreShared4(to, words);
}

// Copies tiles of kRows x kDim elements of one head of a tensor to shared memory: zeros past the sequence's end and
// past the tensor's columns, and for a tensor that is absent. A thread copies one 16-byte chunk of every kRowStep-th
// row, so that it keeps nothing but its address in the head's first row.
template <typename T, int kThreads, int kRows, int kDim, bool kGeneral = false>
class TileLoader {
 public:
  TileLoader() = default;
  // `start`: rows before the head's first in memory.
  __device__ TileLoader(const TensorView& view, int32_t probe, int32_t batch, int32_t head, int64_t start,
                        int32_t columns) {
    const bool absent = view.data == nullptr;
    source_ = static_cast<const char*>(view.data) +
              RowOffset(view, probe, batch, head, start) * static_cast<int64_t>(sizeof(T)) + Chunk() * 16;
    pitch_ = absent ? 0 : static_cast<int32_t>(view.row) * static_cast<int32_t>(sizeof(T));
    bytes_ = absent ? 0 : max(0, min(16, columns * static_cast<int32_t>(sizeof(T)) - Chunk() * 16));
    source_ += static_cast<int64_t>(First()) * pitch_;
  }

  // Starts copying the tile of rows [row, row + kRows) of a head of `length` rows. `alignment` of its rows in bytes: by
  // 16 bytes, by 4, or element by element through registers.
  __device__ void Load(uint32_t to, int32_t row, int32_t length, [[maybe_unused]] int alignment = 16) const {
    const char* source = source_ + static_cast<int64_t>(row) * pitch_;
    to += static_cast<uint32_t>(First() * kPitch + Chunk() * 16);
    if constexpr (kGeneral) {
      if (alignment < 16) {
#pragma unroll 1
        for (int i = 0; i < kRows / kRowStep; ++i) {
          const bool inside = row + First() + i * kRowStep < length;
          const char* const from = source + static_cast<int64_t>(i * kRowStep) * pitch_;
          const uint32_t there = to + i * kRowStep * kPitch;
          if (kIsTf32<T> || alignment == 4) {
#pragma unroll
            for (int word = 0; word < 4; ++word) {
              tile::CopyAsync4(there + word * 4, from + word * 4, inside && word * 4 < bytes_ ? 4 : 0);
            }
          } else {
            CopyElements(there, from, inside ? bytes_ / 2 : 0);
          }
        }
        return;
      }
    }
    if (row + kRows <= length) {
#pragma unroll
      for (int i = 0; i < kRows / kRowStep; ++i) {
        tile::CopyAsync16(to + i * kRowStep * kPitch, source + static_cast<int64_t>(i * kRowStep) * pitch_, bytes_);
      }
    } else {
#pragma unroll 1
      for (int i = 0; i < kRows / kRowStep; ++i) {
        const bool inside = row + First() + i * kRowStep < length;
        tile::CopyAsync16(to + i * kRowStep * kPitch, source + static_cast<int64_t>(i * kRowStep) * pitch_,
                          inside ? bytes_ : 0);
      }
    }
  }

 private:
  static constexpr int kChunks = kDim * static_cast<int>(sizeof(T)) / 16;  // of a row
  static constexpr int kRowStep = kThreads / kChunks;
  static constexpr int kPitch = kDim * static_cast<int>(sizeof(T)) + kPadding;
  static_assert(kThreads % kChunks == 0 && kRows % kRowStep == 0);

  __device__ static int Chunk() { return static_cast<int>(threadIdx.x) % kChunks; }
  __device__ static int First() { return static_cast<int>(threadIdx.x) / kChunks; }

  const char* source_;
  int32_t pitch_;  // bytes
  int32_t bytes_;  // of this thread's chunk that the tensor has
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

// Two neighbouring elements of a row, at an even column of `columns`; of fp32 where the tensor holds accumulators.
// `unaligned`: pairs may lie anywhere, and the second element past the
// row's end.
template <typename T>
__device__ inline float2 LoadPair(const void* data, int64_t offset, int columns_left, bool unaligned,
                                  bool accumulator = false) {
  const auto one = [&](int64_t at) {
    if (accumulator) return static_cast<const float*>(data)[at];
    return static_cast<float>(static_cast<const T*>(data)[at]);
  };
  if (unaligned) return {one(offset), columns_left > 1 ? one(offset + 1) : 0.0f};
  if constexpr (!kIsTf32<T>) {
    if (!accumulator) return tile::Unpack<T>(*reinterpret_cast<const uint32_t*>(static_cast<const T*>(data) + offset));
  }
  return *reinterpret_cast<const float2*>(static_cast<const float*>(data) + offset);
}
template <typename T>
__device__ inline void StorePair(void* data, int64_t offset, float low, float high, int columns_left, bool unaligned,
                                 bool accumulator = false) {
  if (unaligned) {
    for (int i = 0; i < (columns_left > 1 ? 2 : 1); ++i) {
      const float x = i == 0 ? low : high;
      if (accumulator) {
        static_cast<float*>(data)[offset + i] = x;
      } else {
        static_cast<T*>(data)[offset + i] = static_cast<T>(x);
      }
    }
    return;
  }
  if constexpr (!kIsTf32<T>) {
    if (!accumulator) {
      *reinterpret_cast<uint32_t*>(static_cast<T*>(data) + offset) = tile::Pack<T>(low, high);
      return;
    }
  }
  *reinterpret_cast<float2*>(static_cast<float*>(data) + offset) = {low, high};
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

// Rates are those measured on an H200 (README.md), of the slowest problem that a kernel serves.
template <typename Config, int kOwned, int kStreamed>
PassKernel MakePassKernel(const char* name, const void* function) {
  return {name,
          kOwned,
          kStreamed,
          Config::kThreads,
          Config::kCtasPerSm,
          Config::kSharedBytes,
          Config::kStateBytes,
          Config::kFlopsPerSm,
          function,
          Config::kDim};
}

}  // namespace flashbob::cuda::mma

#endif  // FLASHBOB_KERNELS_CUDA_MMA_COMMON_CUH_
