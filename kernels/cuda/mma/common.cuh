// What the tensor-core kernels share: tiles in shared memory, fragments, the mask inside a tile.
//
// Products of bf16 and fp16 are m16n8k16, of float (TF32) m16n8k8, with fp32 sums, of double m16n8k4: 32 bytes of the
// contracted dimension. A fragment c[4] of a 16 x 8 product lies in a warp like this, with g = lane / 4 and t = lane %
// 4: c[0], c[1] at row g, columns 2t, 2t + 1; c[2], c[3] at row g + 8. Scores stay in registers as left operands of the
// next product: two neighbouring fragments, packed to 16 bits, are one; so is one fragment of TF32, whose columns then
// come in the order 0, 2, 4, 6, 1, 3, 5, 7, and half a fragment of double, the even columns or the odd ones. The right
// operand's rows are loaded in the same order.
//
// Tiles in shared memory are row major. With 16 bytes of padding a row the eight rows of an ldmatrix lie in different
// banks, and every address is a constant past the lane's own; but cp.async then fetches every sector (32 bytes) of the
// odd rows twice, for its halves go to two sectors. So tiles of 16-bit elements that are copied have 32 bytes of
// padding and the 16-byte halves of sectors swapped in rows 4 to 7 of every eight: the same banks, and whole sectors.
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

// Bytes after a row of a tile of T that is copied, and of scores.
template <typename T>
inline constexpr int kPadding = sizeof(T) == 2 ? 32 : 16;
inline constexpr int kScorePadding = 16;
// Whether a tile of kPitch bytes a row swaps the halves of sectors, and whether it does so in a row.
template <int kPitch>
inline constexpr bool kSwapsHalves = kPitch % 32 == 0;
template <int kPitch>
__device__ inline int SwapOf(int row) {
  return kSwapsHalves<kPitch> ? row / 4 % 2 : 0;
}
template <typename Real>
inline constexpr Real kLog2E = static_cast<Real>(1.44269504088896341);

// What sums of products of T are kept in, and two of them.
template <typename T>
using RealOf = std::conditional_t<sizeof(T) == 8, double, float>;
template <typename Real>
using Pair = std::conditional_t<sizeof(Real) == 8, double2, float2>;

// Elements of the contracted dimension that one product takes.
template <typename T>
inline constexpr int kStep = 32 / sizeof(T);
template <typename T>
inline constexpr bool kIsTf32 = sizeof(T) == 4;
template <typename T>
inline constexpr bool kIsDouble = sizeof(T) == 8;

// A left operand of a product, or two neighbouring right operands, as a lane holds them.
template <typename T>
using Operand = std::conditional_t<kIsDouble<T>, double[2], uint32_t[4]>;

// The row of a right operand that lies transposed where step j begins, past the lane's own (of double, the lane's own
// is 2t: steps take the even and the odd rows of eight in turn).
template <typename T>
__device__ constexpr int StepRow(int j) {
  return kIsDouble<T> ? j / 2 * 8 + j % 2 : j * kStep<T>;
}

struct Lane {
  int lane = static_cast<int>(threadIdx.x) % 32;
  int warp = static_cast<int>(threadIdx.x) / 32;
  int g = lane / 4;
  int t = lane % 4;
};

// Byte offset of a lane's row in a tile of kPitch bytes a row. For ldmatrix, `Plain`: 16 rows of 32 bytes, the left
// operand [m][k] as it is, or the 16-bit right operand [k][n] through the transposing load. `Crossed`: the middle two
// matrices swapped, for the right operand [n][k] as it is, or the 16-bit left operand [k][m] through the transposing
// load. Double has loads of its own, of rows g and g + 8.
template <typename T, int kPitch>
__device__ inline uint32_t PlainOffset(const Lane& lane) {
  if constexpr (kIsDouble<T>) return static_cast<uint32_t>(lane.g * kPitch + lane.t * 8);
  const int row = lane.lane % 16;
  return static_cast<uint32_t>(row * kPitch + (lane.lane / 16 ^ SwapOf<kPitch>(row)) * 16);
}
template <typename T, int kPitch>
__device__ inline uint32_t CrossedOffset(const Lane& lane) {
  if constexpr (kIsDouble<T>) return PlainOffset<T, kPitch>(lane);
  const int row = lane.lane % 8 + lane.lane / 16 * 8;
  return static_cast<uint32_t>(row * kPitch + (lane.lane / 8 % 2 ^ SwapOf<kPitch>(row)) * 16);
}
// Of operands that lie transposed. ldmatrix transposes 16-bit elements; wider ones take loads of rows 2t (and 2t + 1)
// and columns g and g + 8: the padding puts the lanes into different banks.
template <typename T, int kPitch>
__device__ inline uint32_t TransposedRightOffset(const Lane& lane) {
  if constexpr (sizeof(T) == 2) return PlainOffset<T, kPitch>(lane);
  return static_cast<uint32_t>(lane.t * 2 * kPitch + lane.g * static_cast<int>(sizeof(T)));
}
template <typename T, int kPitch>
__device__ inline uint32_t TransposedLeftOffset(const Lane& lane) {
  if constexpr (sizeof(T) == 2) return CrossedOffset<T, kPitch>(lane);
  return TransposedRightOffset<T, kPitch>(lane);
}

// A left operand, or two neighbouring right operands, as they lie.
template <typename T, int kPitch>
__device__ inline void LoadOperand(Operand<T>& to, uint32_t address) {
  if constexpr (kIsDouble<T>) {
    to[0] = tile::LoadSharedDouble(address);
    to[1] = tile::LoadSharedDouble(address + 8 * kPitch);
  } else {
    tile::LoadMatrices(to, address);
    if constexpr (kIsTf32<T>) {
#pragma unroll
      for (int i = 0; i < 4; ++i) to[i] = tile::RoundToTf32(to[i]);
    }
  }
}
// Two neighbouring right operands that lie transposed.
template <typename T, int kPitch>
__device__ inline void LoadTransposedRight(Operand<T>& to, uint32_t address) {
  if constexpr (kIsDouble<T>) {
    to[0] = tile::LoadSharedDouble(address);
    to[1] = tile::LoadSharedDouble(address + 64);
  } else if constexpr (kIsTf32<T>) {
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = tile::RoundToTf32(tile::LoadShared(address + i % 2 * kPitch + i / 2 * 32));
  } else {
    tile::LoadMatricesTransposed(to, address);
  }
}
// A left operand that lies transposed, of elements that are rounded already.
template <typename T, int kPitch>
__device__ inline void LoadTransposedLeft(Operand<T>& to, uint32_t address) {
  if constexpr (kIsTf32<T>) {
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = tile::LoadShared(address + i / 2 * kPitch + i % 2 * 32);
  } else {
    LoadTransposedRight<T, kPitch>(to, address);
  }
}

// Scores of kColumns columns as left operands: elements 2 half, 2 half + 1 of fragment n, rounded.
template <typename T, int kColumns>
using LeftOperands = Operand<T>[kColumns / kStep<T>];

template <typename T, int kSteps, typename Real>
__device__ inline void SetLeft(Operand<T> (&left)[kSteps], int n, int half, Real low, Real high) {
  if constexpr (kIsDouble<T>) {
    left[n * 2][half] = low;
    left[n * 2 + 1][half] = high;
  } else if constexpr (kIsTf32<T>) {
    left[n][half] = tile::RoundToTf32(low);
    left[n][2 + half] = tile::RoundToTf32(high);
  } else {
    left[n / 2][n % 2 * 2 + half] = tile::Pack<T>(low, high);
  }
}
// What SetLeft set, to shared memory as two neighbouring elements of a row.
template <typename T, int kSteps>
__device__ inline void StoreLeft(uint32_t address, const Operand<T> (&left)[kSteps], int n, int half) {
  if constexpr (kIsDouble<T>) {
    tile::StoreShared2(address, left[n * 2][half], left[n * 2 + 1][half]);
  } else if constexpr (kIsTf32<T>) {
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
    if constexpr (kGeneral) {
      if (alignment < 16) {
#pragma unroll 1
        for (int i = 0; i < kRows / kRowStep; ++i) {
          const bool inside = row + First() + i * kRowStep < length;
          const char* const from = source + static_cast<int64_t>(i * kRowStep) * pitch_;
          const uint32_t there = to + Place(i);
          if (sizeof(T) > 2 || alignment == 4) {
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
        tile::CopyAsync16(to + Place(i), source + static_cast<int64_t>(i * kRowStep) * pitch_, bytes_);
      }
    } else {
#pragma unroll 1
      for (int i = 0; i < kRows / kRowStep; ++i) {
        const bool inside = row + First() + i * kRowStep < length;
        tile::CopyAsync16(to + Place(i), source + static_cast<int64_t>(i * kRowStep) * pitch_, inside ? bytes_ : 0);
      }
    }
  }

 private:
  static constexpr int kChunks = kDim * static_cast<int>(sizeof(T)) / 16;  // of a row
  static constexpr int kRowStep = kThreads / kChunks;
  static constexpr int kPitch = kDim * static_cast<int>(sizeof(T)) + kPadding<T>;
  static_assert(kThreads % kChunks == 0 && kRows % kRowStep == 0 && kRowStep % 4 == 0);

  __device__ static int Chunk() { return static_cast<int>(threadIdx.x) % kChunks; }
  __device__ static int First() { return static_cast<int>(threadIdx.x) / kChunks; }
  // Where this thread's i-th chunk goes. Row steps are multiples of 8, but for rows so long that they are 4.
  __device__ static uint32_t Place(int i) {
    const int swap = SwapOf<kPitch>(First() + i * (kRowStep % 8));
    return static_cast<uint32_t>((First() + i * kRowStep) * kPitch + (Chunk() ^ swap) * 16);
  }

  const char* source_;
  int32_t pitch_;  // bytes
  int32_t bytes_;  // of this thread's chunk that the tensor has
};

// c0, c1 += a b of two neighbouring right operands.
template <typename T, typename Real>
__device__ inline void MultiplyPair(Real (&c0)[4], Real (&c1)[4], const Operand<T>& a, const Operand<T>& b) {
  if constexpr (kIsDouble<T>) {
    tile::Multiply(c0, a, b[0]);
    tile::Multiply(c1, a, b[1]);
  } else {
    tile::Multiply<T>(c0, a, b[0], b[1]);
    tile::Multiply<T>(c1, a, b[2], b[3]);
  }
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

// Two neighbouring elements of a row, at an even column; of sums' type where the tensor holds accumulators.
// `unaligned`: pairs may lie anywhere, and the second element past the row's end.
template <typename T>
__device__ inline Pair<RealOf<T>> LoadPair(const void* data, int64_t offset, int columns_left, bool unaligned,
                                           bool accumulator = false) {
  using Real = RealOf<T>;
  const auto one = [&](int64_t at) {
    if (accumulator) return static_cast<const Real*>(data)[at];
    return static_cast<Real>(static_cast<const T*>(data)[at]);
  };
  if (unaligned) return {one(offset), columns_left > 1 ? one(offset + 1) : Real(0)};
  if constexpr (sizeof(T) == 2) {
    if (!accumulator) return tile::Unpack<T>(*reinterpret_cast<const uint32_t*>(static_cast<const T*>(data) + offset));
  }
  return *reinterpret_cast<const Pair<Real>*>(static_cast<const Real*>(data) + offset);
}
template <typename T, typename Real>
__device__ inline void StorePair(void* data, int64_t offset, Real low, Real high, int columns_left, bool unaligned,
                                 bool accumulator = false) {
  if (unaligned) {
    for (int i = 0; i < (columns_left > 1 ? 2 : 1); ++i) {
      const Real x = i == 0 ? low : high;
      if (accumulator) {
        static_cast<Real*>(data)[offset + i] = x;
      } else {
        static_cast<T*>(data)[offset + i] = static_cast<T>(x);
      }
    }
    return;
  }
  if constexpr (sizeof(T) == 2) {
    if (!accumulator) {
      *reinterpret_cast<uint32_t*>(static_cast<T*>(data) + offset) = tile::Pack<T>(low, high);
      return;
    }
  }
  *reinterpret_cast<Pair<Real>*>(static_cast<Real*>(data) + offset) = {low, high};
}

// The sum over the four lanes that share a row.
template <typename Real>
__device__ inline Real SumOverRow(Real x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  x += __shfl_xor_sync(0xffffffffu, x, 2);
  return x;
}

// Accumulators of kTilesM x kTilesN fragments.
template <typename Real, int kTilesM, int kTilesN>
using Sums = Real[kTilesM][kTilesN][4];

template <typename Real, int kTilesM, int kTilesN, typename Function>
__device__ inline void ForEach(Real (&sums)[kTilesM][kTilesN][4], Function function) {
#pragma unroll
  for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
    for (int n = 0; n < kTilesN; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) function(m, n, i, sums[m][n][i]);
    }
  }
}

template <typename Real, int kTilesM, int kTilesN>
__device__ inline void Clear(Real (&sums)[kTilesM][kTilesN][4]) {
  ForEach(sums, [](int, int, int, Real& x) { x = 0; });
}

// Accumulators to and from the state of a split item, in thread order.
template <typename Real>
__device__ inline Real* StateOf(const PassArgs& args, int64_t slot, size_t bytes) {
  return reinterpret_cast<Real*>(static_cast<char*>(args.state) + slot * bytes) + threadIdx.x;
}
template <int kThreads, typename Real, int kTilesM, int kTilesN>
__device__ inline Real* SaveState(Real* state, Real (&sums)[kTilesM][kTilesN][4]) {
  ForEach(sums, [&](int, int, int, Real& x) {
    *state = x;
    state += kThreads;
  });
  return state;
}
template <int kThreads, typename Real, int kTilesM, int kTilesN>
__device__ inline Real* LoadState(Real* state, Real (&sums)[kTilesM][kTilesN][4]) {
  ForEach(sums, [&](int, int, int, Real& x) {
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
