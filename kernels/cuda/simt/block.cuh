// Block products of the plain (no tensor core) kernels: fp32 and fp64 in IEEE arithmetic, and bf16 and fp16 of any head
// dim in fp32.
//
// 256 threads as 16 x 16 (ty, tx). A score block has kStreamed x kOwned elements, of which a thread holds rows
// ty + 16 i and columns tx * kVector + j. Operands pass through shared memory in chunks of kDepth columns, so that any
// head dim takes the same memory; chunks past a tensor's columns or rows are filled with zeros, never multiplied by
// zero, so that what lies beyond a sequence cannot matter.
#ifndef FLASHBOB_KERNELS_CUDA_SIMT_BLOCK_CUH_
#define FLASHBOB_KERNELS_CUDA_SIMT_BLOCK_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/pass.h"
#include "kernels/cuda/walk.h"

namespace flashbob::cuda::simt {

template <typename T>
struct RealOf {
  using Type = float;
};
template <>
struct RealOf<double> {
  using Type = double;
};

inline constexpr int kThreads = 256;
inline constexpr int kMaxWidth = 256;
inline constexpr int kPartial = 8;  // terms of a dot product that are summed on their own

// Tile sizes of an accumulation type.
template <typename Real>
struct Tile {
  static constexpr int kVector = 16 / sizeof(Real);  // elements of a 16-byte access
  static constexpr int kOwned = 16 * kVector;        // 64 for float, 32 for double
  static constexpr int kStreamed = 32;
  static constexpr int kRows = kStreamed / 16;  // rows of a score block that a thread holds
  static constexpr int kDepth = 32;
  static constexpr int kColumns = 16 * kVector;  // of an output chunk
  static constexpr int kChunks = kMaxWidth / kColumns;
  static constexpr int kOwnedPitch = kOwned + kVector;
  static constexpr int kStreamedPitch = kStreamed + kVector;
};

// Shared memory: operands of one product at a time, and up to three score blocks as left operands of the second
// products.
template <typename Real>
struct Shared {
  using Sizes = Tile<Real>;
  union {
    struct {
      alignas(16) Real streamed[Sizes::kDepth][Sizes::kStreamedPitch];
      alignas(16) Real owned[Sizes::kDepth][Sizes::kOwnedPitch];
    };
    alignas(16) Real right[Sizes::kOwned][Sizes::kColumns];
  };
  alignas(16) Real left[3][Sizes::kStreamed][Sizes::kOwned];
  Real column[Sizes::kOwned];  // one scalar an owned row
};

template <typename T>
__device__ inline typename RealOf<T>::Type ToReal(T value) {
  if constexpr (sizeof(T) == 2) {
    return static_cast<float>(value);
  } else {
    return value;
  }
}

template <typename T, typename Real>
__device__ inline T FromReal(Real value) {
  if constexpr (sizeof(T) == 2) {
    if constexpr (__is_same(T, __nv_bfloat16)) {
      return __float2bfloat16_rn(value);
    } else {
      return __float2half_rn(value);
    }
  } else {
    return value;
  }
}

__device__ inline float Exp(float x) { return expf(x); }
__device__ inline double Exp(double x) { return exp(x); }
__device__ inline float Log(float x) { return logf(x); }
__device__ inline double Log(double x) { return log(x); }
template <typename Real>
__device__ inline Real Infinity() {
  return static_cast<Real>(__int_as_float(0x7f800000));
}

// 16 bytes from shared memory.
template <typename Real>
__device__ inline void LoadVector(Real (&to)[Tile<Real>::kVector], const Real* from) {
  *reinterpret_cast<float4*>(to) = *reinterpret_cast<const float4*>(from);
}

// Rows [0, rows) of one head of a tensor: `rows` are those within the sequence.
template <typename T>
struct Rows {
  const T* data = nullptr;
  int64_t pitch = 0;
  int32_t rows = 0;
  int32_t columns = 0;
};

template <typename T>
__device__ inline Rows<T> RowsOf(const TensorView& view, int32_t probe, int32_t batch, int32_t head, int64_t start,
                                 int64_t begin, int64_t length, int32_t columns) {
  Rows<T> rows;
  if (view.data == nullptr) return rows;
  rows.data = static_cast<const T*>(view.data) + RowOffset(view, probe, batch, head, start + begin);
  rows.pitch = view.row;
  rows.rows = static_cast<int32_t>(length - begin < INT32_MAX ? length - begin : INT32_MAX);
  rows.columns = columns;
  return rows;
}

// to[column][row] = from[row][first + column], zeros past either end.
template <typename T, typename Real, int kPitch>
__device__ inline void LoadTransposed(Real (*to)[kPitch], int count, const Rows<T>& from, int first) {
  for (int i = threadIdx.x; i < count * Tile<Real>::kDepth; i += kThreads) {
    const int column = i % Tile<Real>::kDepth;
    const int row = i / Tile<Real>::kDepth;
    const bool inside = row < from.rows && first + column < from.columns;
    to[column][row] = inside ? static_cast<Real>(ToReal(from.data[row * from.pitch + first + column])) : Real(0);
  }
}

// scores += streamed owned^T, contracted over their columns.
template <typename T, typename Real>
__device__ inline void AddScores(Real (&scores)[Tile<Real>::kRows][Tile<Real>::kVector], Shared<Real>& shared,
                                 const Rows<T>& streamed, const Rows<T>& owned) {
  using Sizes = Tile<Real>;
  if (streamed.data == nullptr || owned.data == nullptr) return;
  const int tx = threadIdx.x % 16;
  const int ty = threadIdx.x / 16;
  for (int first = 0; first < streamed.columns; first += Sizes::kDepth) {
    __syncthreads();
    LoadTransposed<T, Real>(shared.streamed, Sizes::kStreamed, streamed, first);
    LoadTransposed<T, Real>(shared.owned, Sizes::kOwned, owned, first);
    __syncthreads();
    // Sums of kPartial terms are added to the running ones: their error grows more slowly with the head dim.
#pragma unroll 1
    for (int part = 0; part < Sizes::kDepth; part += kPartial) {
      Real partial[Sizes::kRows][Sizes::kVector] = {};
#pragma unroll
      for (int k = part; k < part + kPartial; ++k) {
        Real right[Sizes::kVector];
        LoadVector(right, &shared.owned[k][tx * Sizes::kVector]);
#pragma unroll
        for (int i = 0; i < Sizes::kRows; ++i) {
          const Real left = shared.streamed[k][ty + 16 * i];
#pragma unroll
          for (int j = 0; j < Sizes::kVector; ++j) partial[i][j] = fma(left, right[j], partial[i][j]);
        }
      }
#pragma unroll
      for (int i = 0; i < Sizes::kRows; ++i) {
#pragma unroll
        for (int j = 0; j < Sizes::kVector; ++j) scores[i][j] += partial[i][j];
      }
    }
  }
}

// Writes a thread's part of a score block to a left operand.
template <typename Real>
__device__ inline void StoreLeft(Real (&left)[Tile<Real>::kStreamed][Tile<Real>::kOwned],
                                 const Real (&block)[Tile<Real>::kRows][Tile<Real>::kVector]) {
  const int tx = threadIdx.x % 16;
  const int ty = threadIdx.x / 16;
#pragma unroll
  for (int i = 0; i < Tile<Real>::kRows; ++i) {
    *reinterpret_cast<float4*>(&left[ty + 16 * i][tx * Tile<Real>::kVector]) =
        *reinterpret_cast<const float4*>(block[i]);
  }
}

// right[row][column] = from[row][first + column], zeros past either end.
template <typename T, typename Real>
__device__ inline void LoadRight(Shared<Real>& shared, int count, const Rows<T>& from, int first) {
  using Sizes = Tile<Real>;
  for (int i = threadIdx.x; i < count * Sizes::kColumns; i += kThreads) {
    const int column = i % Sizes::kColumns;
    const int row = i / Sizes::kColumns;
    const bool inside = row < from.rows && first + column < from.columns;
    shared.right[row][column] =
        inside ? static_cast<Real>(ToReal(from.data[row * from.pitch + first + column])) : Real(0);
  }
}

// Accumulators of an owned block: rows ty * kVector + i, columns chunk * kColumns + tx * kVector + j. ForEach calls
// function(i, row, column, element).
template <typename Real>
struct Accumulator {
  using Sizes = Tile<Real>;
  Real value[Sizes::kChunks][Sizes::kVector][Sizes::kVector];

  template <typename Function>
  __device__ void ForEach(Function function) {
#pragma unroll
    for (int chunk = 0; chunk < Sizes::kChunks; ++chunk) {
#pragma unroll
      for (int i = 0; i < Sizes::kVector; ++i) {
#pragma unroll
        for (int j = 0; j < Sizes::kVector; ++j) {
          function(i, static_cast<int>(threadIdx.x / 16) * Sizes::kVector + i,
                   chunk * Sizes::kColumns + static_cast<int>(threadIdx.x % 16) * Sizes::kVector + j,
                   value[chunk][i][j]);
        }
      }
    }
  }

  __device__ void Clear() {
    ForEach([](int, int, int, Real& x) { x = 0; });
  }
};

// One term of a second product: left[term]^T right.
template <typename T>
struct Term {
  int left;
  Rows<T> right;
};

// sum += left_a^T right_a + left_b^T right_b. The terms of a tile are summed on their own before they are added to the
// running sum, so that its error does not grow with the number of keys.
template <typename T, typename Real>
__device__ inline void AddProducts(Accumulator<Real>& sum, Shared<Real>& shared, const Term<T>& a, const Term<T>& b) {
  using Sizes = Tile<Real>;
  const int tx = threadIdx.x % 16;
  const int ty = threadIdx.x / 16;
  const int columns = a.right.data != nullptr ? a.right.columns : b.right.columns;
#pragma unroll
  for (int chunk = 0; chunk < Sizes::kChunks; ++chunk) {
    if (chunk * Sizes::kColumns < columns) {
      Real tile[Sizes::kVector][Sizes::kVector] = {};
#pragma unroll 1
      for (int index = 0; index < 2; ++index) {
        const Term<T>& term = index == 0 ? a : b;
        if (term.right.data == nullptr) continue;
        __syncthreads();
        LoadRight<T, Real>(shared, Sizes::kStreamed, term.right, chunk * Sizes::kColumns);
        __syncthreads();
#pragma unroll 8
        for (int s = 0; s < Sizes::kStreamed; ++s) {
          Real left[Sizes::kVector];
          Real right[Sizes::kVector];
          LoadVector(left, &shared.left[term.left][s][ty * Sizes::kVector]);
          LoadVector(right, &shared.right[s][tx * Sizes::kVector]);
#pragma unroll
          for (int i = 0; i < Sizes::kVector; ++i) {
#pragma unroll
            for (int j = 0; j < Sizes::kVector; ++j) tile[i][j] = fma(left[i], right[j], tile[i][j]);
          }
        }
      }
#pragma unroll
      for (int i = 0; i < Sizes::kVector; ++i) {
#pragma unroll
        for (int j = 0; j < Sizes::kVector; ++j) sum.value[chunk][i][j] += tile[i][j];
      }
    }
  }
}

// Accumulators to and from the state of a split item, in thread order: no index arithmetic, coalesced.
template <typename Real>
__device__ inline Real* StateOf(const PassArgs& args, size_t bytes) {
  return reinterpret_cast<Real*>(static_cast<char*>(args.state) + blockIdx.x * bytes) + threadIdx.x;
}

template <typename Real>
__device__ inline Real* SaveState(Real* state, Accumulator<Real>& sum) {
  sum.ForEach([&](int, int, int, Real& x) {
    *state = x;
    state += kThreads;
  });
  return state;
}

template <typename Real>
__device__ inline const Real* LoadState(const Real* state, Accumulator<Real>& sum) {
  sum.ForEach([&](int, int, int, Real& x) {
    x = *state;
    state += kThreads;
  });
  return state;
}

template <typename Real>
inline constexpr size_t kAccumulatorBytes = sizeof(Accumulator<Real>) * kThreads;

// The sum of `value` over the 16 threads of a row of the thread grid.
template <typename Real>
__device__ inline Real SumOverTx(Real value) {
#pragma unroll
  for (int offset = 8; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset, 16);
  return value;
}

}  // namespace flashbob::cuda::simt

#endif  // FLASHBOB_KERNELS_CUDA_SIMT_BLOCK_CUH_
