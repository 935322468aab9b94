// BoB in fp64 on the GPU, as math.md writes it: one CTA a row, every pair from its definition. The oracle of
// hopper_kernels.cu at sizes where the CPU's would take minutes. `absolute` puts the absolute value in place of every
// factor and term but P: the scale of outputs that are zero by cancellation.
#ifndef FLASHBOB_TESTS_BENCHMARK_HOPPER_REFERENCE_CUH_
#define FLASHBOB_TESTS_BENCHMARK_HOPPER_REFERENCE_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/mask.h"

namespace flashbob::benchmark {

__device__ inline double ToDouble(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline double ToDouble(__half x) { return __half2float(x); }

// A tensor [batch][heads][rows][head_dim].
struct View {
  const void* data;
  int64_t batch, head, row;
};

struct ReferenceArgs {
  View q, k, v, dout, uq, uk, uv;
  int32_t heads, kv_heads, head_dim;
  BandMask mask;
  double scale;
  bool absolute;
  // [batch * heads][query_len], or with head_dim behind it.
  double *lse, *d, *c, *r;
  double *o, *gdo, *gq;
  // [batch * kv_heads][key_len][head_dim]
  double *gk, *gv;
};

constexpr int kReferenceThreads = 128;

template <typename T>
__device__ inline const T* RowOf(const View& view, int32_t batch, int32_t head, int64_t row) {
  return static_cast<const T*>(view.data) + batch * view.batch + head * view.head + row * view.row;
}

template <typename T>
__device__ inline double Dot(const T* a, const T* b, int32_t count, bool absolute) {
  double sum = 0;
  for (int32_t x = 0; x < count; ++x) {
    const double term = ToDouble(a[x]) * ToDouble(b[x]);
    sum += absolute ? fabs(term) : term;
  }
  return sum;
}

__device__ inline double Factor(double x, bool absolute) { return absolute ? fabs(x) : x; }

__device__ inline double BlockReduce(double value, bool largest) {
  __shared__ double values[kReferenceThreads];
  __syncthreads();
  values[threadIdx.x] = value;
  __syncthreads();
  double result = values[0];
  for (int i = 1; i < kReferenceThreads; ++i) {
    result = largest ? fmax(result, values[i]) : result + values[i];
  }
  return result;
}

// L, O, D, c, gdO, r of one query row.
template <typename T>
__global__ void ReferenceRows(ReferenceArgs args) {
  __shared__ double weights[2][kReferenceThreads];
  const int64_t i = blockIdx.x;
  const int32_t head = blockIdx.y % args.heads;
  const int32_t batch = blockIdx.y / args.heads;
  const int32_t kv_head = head / (args.heads / args.kv_heads);
  const int64_t row = static_cast<int64_t>(blockIdx.y) * args.mask.query_len + i;
  const IndexRange keys = args.mask.KeysOf(i);
  const T* q = RowOf<T>(args.q, batch, head, i);
  const T* uq = RowOf<T>(args.uq, batch, head, i);
  const T* dout = RowOf<T>(args.dout, batch, head, i);
  double largest = -INFINITY;
  for (int64_t j = keys.begin + threadIdx.x; j < keys.end; j += kReferenceThreads) {
    largest = fmax(largest, args.scale * Dot(q, RowOf<T>(args.k, batch, kv_head, j), args.head_dim, false));
  }
  largest = BlockReduce(largest, true);
  double sum = 0;
  for (int64_t j = keys.begin + threadIdx.x; j < keys.end; j += kReferenceThreads) {
    sum += exp(args.scale * Dot(q, RowOf<T>(args.k, batch, kv_head, j), args.head_dim, false) - largest);
  }
  sum = BlockReduce(sum, false);
  const double lse = keys.empty() ? -INFINITY : largest + log(sum);
  double o = 0;
  double gdo = 0;
  double c = 0;
  const int x = threadIdx.x;
  for (int64_t first = keys.begin; first < keys.end; first += kReferenceThreads) {
    const int64_t j = first + threadIdx.x;
    double p = 0;
    double pg = 0;
    if (j < keys.end) {
      const T* k = RowOf<T>(args.k, batch, kv_head, j);
      p = exp(args.scale * Dot(q, k, args.head_dim, false) - lse);
      pg = p * args.scale *
           (Dot(uq, k, args.head_dim, args.absolute) +
            Dot(q, RowOf<T>(args.uk, batch, kv_head, j), args.head_dim, args.absolute));
    }
    c += pg;
    __syncthreads();
    weights[0][threadIdx.x] = p;
    weights[1][threadIdx.x] = pg;
    __syncthreads();
    if (x >= args.head_dim) continue;
    for (int t = 0; t < kReferenceThreads && first + t < keys.end; ++t) {
      const double v = Factor(ToDouble(RowOf<T>(args.v, batch, kv_head, first + t)[x]), args.absolute);
      o += weights[0][t] * v;
      gdo += weights[1][t] * v +
             weights[0][t] * Factor(ToDouble(RowOf<T>(args.uv, batch, kv_head, first + t)[x]), args.absolute);
    }
  }
  c = BlockReduce(c, false);
  const double sign = args.absolute ? -1 : 1;
  gdo -= sign * c * o;
  const double out_gradient = x < args.head_dim ? Factor(ToDouble(dout[x]), args.absolute) : 0;
  const double d = BlockReduce(out_gradient * (x < args.head_dim ? o : 0), false);
  const double r = BlockReduce(out_gradient * (x < args.head_dim ? gdo : 0), false);
  if (x < args.head_dim) {
    args.o[row * args.head_dim + x] = o;
    args.gdo[row * args.head_dim + x] = gdo;
  }
  if (x == 0) {
    args.lse[row] = lse;
    args.d[row] = d;
    args.c[row] = c;
    args.r[row] = r;
  }
}

struct PairFactors {
  double x, y, z;
};

template <typename T>
__device__ inline PairFactors FactorsOf(const ReferenceArgs& args, int32_t batch, int32_t head, int64_t i, int64_t j) {
  const int32_t kv_head = head / (args.heads / args.kv_heads);
  const int64_t row = (static_cast<int64_t>(batch) * args.heads + head) * args.mask.query_len + i;
  const T* q = RowOf<T>(args.q, batch, head, i);
  const T* dout = RowOf<T>(args.dout, batch, head, i);
  const T* k = RowOf<T>(args.k, batch, kv_head, j);
  const double p = exp(args.scale * Dot(q, k, args.head_dim, false) - args.lse[row]);
  const bool absolute = args.absolute;
  const double sign = absolute ? -1 : 1;
  const double g = args.scale * (Dot(RowOf<T>(args.uq, batch, head, i), k, args.head_dim, absolute) +
                                 Dot(q, RowOf<T>(args.uk, batch, kv_head, j), args.head_dim, absolute)) -
                   sign * args.c[row];
  const double dp = Dot(dout, RowOf<T>(args.v, batch, kv_head, j), args.head_dim, absolute) - sign * args.d[row];
  const double h = Dot(dout, RowOf<T>(args.uv, batch, kv_head, j), args.head_dim, absolute) - sign * args.r[row];
  return {p * g, p * (g * dp + h), p * dp};
}

// gQ of one query row.
template <typename T>
__global__ void ReferenceQueries(ReferenceArgs args) {
  __shared__ PairFactors factors[kReferenceThreads];
  const int64_t i = blockIdx.x;
  const int32_t head = blockIdx.y % args.heads;
  const int32_t batch = blockIdx.y / args.heads;
  const int32_t kv_head = head / (args.heads / args.kv_heads);
  const IndexRange keys = args.mask.KeysOf(i);
  double gq = 0;
  for (int64_t first = keys.begin; first < keys.end; first += kReferenceThreads) {
    __syncthreads();
    if (first + threadIdx.x < keys.end) factors[threadIdx.x] = FactorsOf<T>(args, batch, head, i, first + threadIdx.x);
    __syncthreads();
    if (threadIdx.x >= args.head_dim) continue;
    for (int t = 0; t < kReferenceThreads && first + t < keys.end; ++t) {
      gq += factors[t].y * Factor(ToDouble(RowOf<T>(args.k, batch, kv_head, first + t)[threadIdx.x]), args.absolute) +
            factors[t].z * Factor(ToDouble(RowOf<T>(args.uk, batch, kv_head, first + t)[threadIdx.x]), args.absolute);
    }
  }
  if (threadIdx.x < args.head_dim) {
    args.gq[(static_cast<int64_t>(blockIdx.y) * args.mask.query_len + i) * args.head_dim + threadIdx.x] =
        args.scale * gq;
  }
}

// gK and gV of one key.
template <typename T>
__global__ void ReferenceKeys(ReferenceArgs args) {
  __shared__ PairFactors factors[kReferenceThreads];
  const int64_t j = blockIdx.x;
  const int32_t kv_head = blockIdx.y % args.kv_heads;
  const int32_t batch = blockIdx.y / args.kv_heads;
  const int32_t group = args.heads / args.kv_heads;
  const IndexRange queries = args.mask.QueriesOf(j);
  double gk = 0;
  double gv = 0;
  for (int32_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    for (int64_t first = queries.begin; first < queries.end; first += kReferenceThreads) {
      __syncthreads();
      if (first + threadIdx.x < queries.end) {
        factors[threadIdx.x] = FactorsOf<T>(args, batch, head, first + threadIdx.x, j);
      }
      __syncthreads();
      if (threadIdx.x >= args.head_dim) continue;
      for (int t = 0; t < kReferenceThreads && first + t < queries.end; ++t) {
        const int64_t i = first + t;
        gv += factors[t].x * Factor(ToDouble(RowOf<T>(args.dout, batch, head, i)[threadIdx.x]), args.absolute);
        gk += factors[t].y * Factor(ToDouble(RowOf<T>(args.q, batch, head, i)[threadIdx.x]), args.absolute) +
              factors[t].z * Factor(ToDouble(RowOf<T>(args.uq, batch, head, i)[threadIdx.x]), args.absolute);
      }
    }
  }
  if (threadIdx.x < args.head_dim) {
    const int64_t at = (static_cast<int64_t>(blockIdx.y) * args.mask.key_len + j) * args.head_dim + threadIdx.x;
    args.gk[at] = args.scale * gk;
    args.gv[at] = gv;
  }
}

}  // namespace flashbob::benchmark

#endif  // FLASHBOB_TESTS_BENCHMARK_HOPPER_REFERENCE_CUH_
