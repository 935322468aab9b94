// The sm_90 BoB kernels by themselves: correctness against fp64 and times by device events, on fresh random inputs.
//
//     hopper_kernels check B,H,HKV,NQ,NK,D,LEFT,RIGHT,bf16|fp16,bhnd|bnhd ...
//     hopper_kernels time  (the same) ...
//
// `check` prints errors (math.md) of gq, gk, gv, gdo and exits 1 where one is above the bar (2.7e-3 and 4e-4) or an
// element was not written. `time` prints medians in ms and TFLOP/s on 15 products, one JSON object a line: lse and o
// are near what the forward pass gives, not computed.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/hopper/bob_params.h"
#include "kernels/cuda/hopper/tensor_map.h"
#include "tests/benchmark/hopper_reference.cuh"

namespace flashbob::benchmark {
namespace {

using cuda::hopper::BobItems;
using cuda::hopper::ColumnsParams;
using cuda::hopper::FinishParams;
using cuda::hopper::HalfType;
using cuda::hopper::MappedTensor;
using cuda::hopper::PaddedRows;
using cuda::hopper::RowsParams;

void Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(2);
}

struct Shape {
  int32_t batch, heads, kv_heads;
  int64_t queries, keys;
  int32_t head_dim;
  int64_t left, right;
  HalfType type;
  bool rows_first;  // [batch][rows][heads][d]
  std::string text;
};

Shape Parse(const char* text) {
  Shape shape;
  shape.text = text;
  char type[8];
  char layout[8];
  long long queries, keys, left, right;
  if (std::sscanf(text, "%d,%d,%d,%lld,%lld,%d,%lld,%lld,%7[a-z0-9],%7[a-z]", &shape.batch, &shape.heads,
                  &shape.kv_heads, &queries, &keys, &shape.head_dim, &left, &right, type, layout) != 10) {
    std::fprintf(stderr, "not a shape: %s\n", text);
    std::exit(2);
  }
  shape.queries = queries;
  shape.keys = keys;
  shape.left = left;
  shape.right = right;
  shape.type = std::strcmp(type, "bf16") == 0 ? HalfType::kBFloat16 : HalfType::kFloat16;
  shape.rows_first = std::strcmp(layout, "bnhd") == 0;
  return shape;
}

template <typename T>
__device__ T FromFloat(float x);
template <>
__device__ __nv_bfloat16 FromFloat(float x) {
  return __float2bfloat16(x);
}
template <>
__device__ __half FromFloat(float x) {
  return __float2half(x);
}

__device__ uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

template <typename T>
__global__ void FillNormal(T* data, int64_t count, uint64_t seed, float factor) {
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const uint64_t bits = Mix(seed + static_cast<uint64_t>(i));
    const float u = (static_cast<float>(bits >> 40) + 0.5f) / 16777216.0f;
    const float angle = static_cast<float>(bits & 0xffffff) / 16777216.0f;
    data[i] = FromFloat<T>(factor * sqrtf(-2.0f * logf(u)) * cospif(2.0f * angle));
  }
}

__global__ void FillLse(float* lse, BandMask mask, int64_t count) {
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    lse[i] = logf(static_cast<float>(mask.KeysOf(i % mask.query_len).size())) + 0.5f;
  }
}

template <typename T>
__global__ void RoundOutput(const double* o, const double* lse, View to_o, float* to_lse, int32_t heads, int64_t rows,
                            int32_t head_dim) {
  const int32_t head = blockIdx.y % heads;
  const int32_t batch = blockIdx.y / heads;
  const int64_t row = blockIdx.y * rows + blockIdx.x;
  T* to = static_cast<T*>(const_cast<void*>(to_o.data)) + batch * to_o.batch + head * to_o.head + blockIdx.x * to_o.row;
  to[threadIdx.x] = FromFloat<T>(static_cast<float>(o[row * head_dim + threadIdx.x]));
  if (threadIdx.x == 0) to_lse[row] = static_cast<float>(lse[row]);
}

// One problem with its tensors on the device.
class Problem {
 public:
  Problem(const Shape& shape, uint64_t seed) : shape_(shape) {
    mask_.query_len = shape.queries;
    mask_.key_len = shape.keys;
    mask_.left = shape.left;
    mask_.right = shape.right;
    for (MappedTensor* tensor : {&q_, &uq_, &o_, &dout_, &gq_, &gdo_}) *tensor = Make(shape.heads, shape.queries);
    for (MappedTensor* tensor : {&k_, &uk_, &v_, &uv_, &gk_, &gv_}) *tensor = Make(shape.kv_heads, shape.keys);
    for (const MappedTensor* tensor : {&q_, &uq_, &dout_, &k_, &uk_, &v_, &uv_}) Fill(*tensor, seed++, 1.0f);
    Fill(o_, seed, std::sqrt(1.0f / static_cast<float>(shape.keys)));
    const int64_t rows = static_cast<int64_t>(shape.batch) * shape.heads;
    lse_ = static_cast<float*>(Allocate(rows * shape.queries * 4));
    FillLse<<<1024, 256>>>(lse_, mask_, rows * shape.queries);
    padded_ = PaddedRows(shape.queries);
    scalar_bytes_ = rows * padded_ * cuda::hopper::kRowScalars * 4;
    sum_bytes_ = rows * padded_ * shape.head_dim * 4;
    row_scalars_ = static_cast<float*>(Allocate(scalar_bytes_));
    gq_sum_ = static_cast<float*>(Allocate(sum_bytes_));
    MakeParams();
  }
  ~Problem() {
    for (void* memory : memory_) cudaFree(memory);
  }
  Problem(const Problem&) = delete;
  Problem& operator=(const Problem&) = delete;

  void Rows() { Check(cuda::hopper::LaunchBobRows(shape_.type, shape_.head_dim, rows_, row_items_, nullptr), "rows"); }
  void Columns() {
    Check(cuda::hopper::LaunchBobColumns(shape_.type, shape_.head_dim, columns_, column_items_, nullptr), "columns");
  }
  void Zero() { Check(cudaMemsetAsync(gq_sum_, 0, sum_bytes_), "zero"); }
  void Finish() { Check(cuda::hopper::LaunchBobFinish(shape_.type, shape_.head_dim, finish_, nullptr), "finish"); }
  void Run() {
    Rows();
    Zero();
    Columns();
    Finish();
  }

  // Relative L2 errors; false where one is above the bar or not finite.
  bool CheckErrors() {
    return shape_.type == HalfType::kBFloat16 ? CheckErrorsAs<__nv_bfloat16>(2.7e-3) : CheckErrorsAs<__half>(4e-4);
  }

  double flops() const {
    double pairs = 0;
    for (int64_t i = 0; i < shape_.queries; ++i) pairs += static_cast<double>(mask_.KeysOf(i).size());
    // As math.md counts: a causal square is half of N^2.
    if (shape_.left < 0 && shape_.right == 0 && shape_.queries == shape_.keys) {
      pairs = 0.5 * static_cast<double>(shape_.queries) * static_cast<double>(shape_.keys);
    }
    return 2.0 * 15 * shape_.head_dim * pairs * shape_.batch * shape_.heads;
  }

 private:
  void* Allocate(int64_t bytes) {
    void* memory = nullptr;
    Check(cudaMalloc(&memory, static_cast<size_t>(std::max<int64_t>(bytes, 256))), "cudaMalloc");
    memory_.push_back(memory);
    return memory;
  }
  MappedTensor Make(int32_t heads, int64_t rows) {
    MappedTensor tensor;
    tensor.columns = shape_.head_dim;
    tensor.rows = rows;
    tensor.heads = heads;
    tensor.batch = shape_.batch;
    tensor.row_stride = shape_.rows_first ? static_cast<int64_t>(heads) * shape_.head_dim : shape_.head_dim;
    tensor.head_stride = shape_.rows_first ? shape_.head_dim : rows * shape_.head_dim;
    tensor.batch_stride = rows * heads * shape_.head_dim;
    tensor.data = Allocate(tensor.batch_stride * shape_.batch * 2);
    return tensor;
  }
  int64_t Elements(const MappedTensor& tensor) const { return tensor.batch_stride * shape_.batch; }
  void Fill(const MappedTensor& tensor, uint64_t seed, float factor) {
    const uint64_t start = seed * 0x1000003d7ull << 20;
    if (shape_.type == HalfType::kBFloat16) {
      FillNormal<<<1024, 256>>>(static_cast<__nv_bfloat16*>(tensor.data), Elements(tensor), start, factor);
    } else {
      FillNormal<<<1024, 256>>>(static_cast<__half*>(tensor.data), Elements(tensor), start, factor);
    }
    Check(cudaGetLastError(), "fill");
  }
  CUtensorMap Map(const MappedTensor& tensor, int32_t box_rows) const {
    CUtensorMap map;
    Check(cuda::hopper::MakeTensorMap(shape_.type, tensor, box_rows, &map), "tensor map");
    return map;
  }
  static View ViewOf(const MappedTensor& tensor) {
    return {tensor.data, tensor.batch_stride, tensor.head_stride, tensor.row_stride};
  }

  void MakeParams() {
    const float scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim));
    const int32_t power_shift = cuda::hopper::PowerShift(shape_.type, shape_.keys);
    const int32_t group = shape_.heads / shape_.kv_heads;
    const int32_t key_rows = cuda::hopper::RowsKeys(shape_.head_dim);
    const int32_t query_rows = cuda::hopper::ColumnsQueries(shape_.head_dim);
    rows_.q = Map(q_, 128);
    rows_.uq = Map(uq_, 128);
    rows_.o = Map(o_, 128);
    rows_.dout = Map(dout_, 128);
    rows_.gdo = Map(gdo_, 64);
    rows_.k = Map(k_, key_rows);
    rows_.uk = Map(uk_, key_rows);
    rows_.v = Map(v_, key_rows);
    rows_.uv = Map(uv_, key_rows);
    rows_.lse = lse_;
    rows_.lse_batch = shape_.heads * shape_.queries;
    rows_.lse_head = shape_.queries;
    rows_.lse_row = 1;
    rows_.row_scalars = row_scalars_;
    rows_.mask = mask_;
    rows_.schedule = cuda::hopper::MakeSchedule(shape_.batch * shape_.heads, shape_.queries);
    row_items_ = BobItems(rows_.schedule);
    rows_.heads = shape_.heads;
    rows_.group = group;
    rows_.scale = scale;
    rows_.score_scale = scale * 1.4426950408889634f;
    rows_.power_shift = power_shift;

    columns_.k = Map(k_, 128);
    columns_.uk = Map(uk_, 128);
    columns_.v = Map(v_, 128);
    columns_.uv = Map(uv_, 128);
    columns_.gk = Map(gk_, 64);
    columns_.gv = Map(gv_, 64);
    columns_.q = Map(q_, query_rows);
    columns_.uq = Map(uq_, query_rows);
    columns_.dout = Map(dout_, query_rows);
    columns_.row_scalars = row_scalars_;
    columns_.gq_sum = gq_sum_;
    columns_.mask = mask_;
    columns_.schedule = cuda::hopper::MakeSchedule(shape_.batch * shape_.kv_heads, shape_.keys);
    column_items_ = BobItems(columns_.schedule);
    columns_.kv_heads = shape_.kv_heads;
    columns_.group = group;
    columns_.scale = scale;
    columns_.score_scale = rows_.score_scale;
    columns_.power_shift = power_shift;

    finish_.gq_sum = gq_sum_;
    finish_.gq = gq_.data;
    finish_.gq_batch = gq_.batch_stride;
    finish_.gq_head = gq_.head_stride;
    finish_.gq_row = gq_.row_stride;
    finish_.heads = shape_.heads;
    finish_.batch = shape_.batch;
    finish_.query_len = static_cast<int32_t>(shape_.queries);
    finish_.factor = std::ldexp(scale, -power_shift);
  }

  template <typename T>
  bool CheckErrorsAs(double bar) {
    const int64_t query_rows = static_cast<int64_t>(shape_.batch) * shape_.heads * shape_.queries;
    const int64_t key_rows = static_cast<int64_t>(shape_.batch) * shape_.kv_heads * shape_.keys;
    const int32_t d = shape_.head_dim;
    const auto doubles = [&](int64_t count) { return static_cast<double*>(Allocate(count * 8)); };
    ReferenceArgs args;
    ReferenceArgs scale;  // of outputs that are zero by cancellation
    args.q = ViewOf(q_);
    args.k = ViewOf(k_);
    args.v = ViewOf(v_);
    args.dout = ViewOf(dout_);
    args.uq = ViewOf(uq_);
    args.uk = ViewOf(uk_);
    args.uv = ViewOf(uv_);
    args.heads = shape_.heads;
    args.kv_heads = shape_.kv_heads;
    args.head_dim = d;
    args.mask = mask_;
    args.scale = 1.0 / std::sqrt(static_cast<double>(d));
    args.absolute = false;
    scale = args;
    scale.absolute = true;
    for (ReferenceArgs* of : {&args, &scale}) {
      for (double** scalars : {&of->lse, &of->d, &of->c, &of->r}) *scalars = doubles(query_rows);
      for (double** tensor : {&of->o, &of->gdo, &of->gq}) *tensor = doubles(query_rows * d);
      for (double** tensor : {&of->gk, &of->gv}) *tensor = doubles(key_rows * d);
    }
    const dim3 query_grid(static_cast<unsigned>(shape_.queries), static_cast<unsigned>(shape_.batch * shape_.heads));
    const dim3 key_grid(static_cast<unsigned>(shape_.keys), static_cast<unsigned>(shape_.batch * shape_.kv_heads));
    for (const ReferenceArgs& of : {args, scale}) {
      ReferenceRows<T><<<query_grid, kReferenceThreads>>>(of);
      ReferenceQueries<T><<<query_grid, kReferenceThreads>>>(of);
      ReferenceKeys<T><<<key_grid, kReferenceThreads>>>(of);
    }
    RoundOutput<T><<<query_grid, d>>>(args.o, args.lse, ViewOf(o_), lse_, shape_.heads, shape_.queries, d);
    Check(cudaGetLastError(), "reference");
    for (const MappedTensor* tensor : {&gq_, &gk_, &gv_, &gdo_}) {
      Check(cudaMemset(tensor->data, 0xff, static_cast<size_t>(Elements(*tensor) * 2)), "poison");
    }
    Check(cudaMemset(row_scalars_, 0xff, static_cast<size_t>(scalar_bytes_)), "poison");
    Check(cudaDeviceSynchronize(), "reference");
    Run();
    Check(cudaDeviceSynchronize(), "kernels");
    std::printf("%-44s", shape_.text.c_str());
    bool good = true;
    good &= Compare<T>("gdo", gdo_, args.gdo, scale.gdo, bar);
    good &= Compare<T>("gv", gv_, args.gv, scale.gv, bar);
    good &= Compare<T>("gk", gk_, args.gk, scale.gk, bar);
    good &= Compare<T>("gq", gq_, args.gq, scale.gq, bar);
    std::printf("  %s\n", good ? "ok" : "FAILED");
    std::fflush(stdout);
    return good;
  }

  template <typename T>
  bool Compare(const char* name, const MappedTensor& tensor, const double* reference, const double* absolute,
               double bar) const {
    std::vector<uint16_t> bits(static_cast<size_t>(Elements(tensor)));
    std::vector<double> expected(bits.size());
    std::vector<double> magnitudes(bits.size());
    Check(cudaMemcpy(bits.data(), tensor.data, bits.size() * 2, cudaMemcpyDeviceToHost), "copy");
    Check(cudaMemcpy(expected.data(), reference, expected.size() * 8, cudaMemcpyDeviceToHost), "copy");
    Check(cudaMemcpy(magnitudes.data(), absolute, magnitudes.size() * 8, cudaMemcpyDeviceToHost), "copy");
    double difference = 0;
    double norm = 0;
    double magnitude = 0;
    int64_t wrong = 0;
    size_t at = 0;
    for (int64_t b = 0; b < tensor.batch; ++b) {
      for (int64_t h = 0; h < tensor.heads; ++h) {
        for (int64_t n = 0; n < tensor.rows; ++n) {
          const int64_t row = b * tensor.batch_stride + h * tensor.head_stride + n * tensor.row_stride;
          for (int64_t x = 0; x < tensor.columns; ++x, ++at) {
            const double value = ToHost<T>(bits[static_cast<size_t>(row + x)]);
            if (!std::isfinite(value)) {
              ++wrong;
              continue;
            }
            difference += (value - expected[at]) * (value - expected[at]);
            norm += expected[at] * expected[at];
            magnitude += magnitudes[at] * magnitudes[at];
          }
        }
      }
    }
    // Stricter than math.md: the scale by absolute values is for outputs that are zero by cancellation, and only for
    // them.
    const double scale = norm > 1e-12 * magnitude ? norm : 1e-4 * magnitude;
    const double error = std::sqrt(difference / std::max(scale, 1e-300));
    std::printf(" %s %.2e", name, error);
    if (wrong > 0) std::printf(" (%lld not finite)", static_cast<long long>(wrong));
    return wrong == 0 && error <= bar;
  }

  template <typename T>
  static double ToHost(uint16_t bits) {
    T value;
    std::memcpy(static_cast<void*>(&value), &bits, 2);
    return static_cast<double>(static_cast<float>(value));
  }

  Shape shape_;
  BandMask mask_;
  MappedTensor q_, uq_, o_, dout_, gq_, gdo_, k_, uk_, v_, uv_, gk_, gv_;
  float* lse_ = nullptr;
  float* row_scalars_ = nullptr;
  float* gq_sum_ = nullptr;
  int64_t padded_ = 0;
  int64_t scalar_bytes_ = 0;
  int64_t sum_bytes_ = 0;
  RowsParams rows_;
  ColumnsParams columns_;
  FinishParams finish_;
  int64_t row_items_ = 0;
  int64_t column_items_ = 0;
  std::vector<void*> memory_;
};

template <typename Function>
double MedianMs(Function&& function, int repeats) {
  cudaEvent_t begin, end;
  Check(cudaEventCreate(&begin), "event");
  Check(cudaEventCreate(&end), "event");
  for (int i = 0; i < 3; ++i) function();
  std::vector<float> times;
  for (int i = 0; i < repeats; ++i) {
    Check(cudaEventRecord(begin), "event");
    function();
    Check(cudaEventRecord(end), "event");
    Check(cudaEventSynchronize(end), "run");
    float ms = 0;
    Check(cudaEventElapsedTime(&ms, begin, end), "event");
    times.push_back(ms);
  }
  std::sort(times.begin(), times.end());
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return times[times.size() / 2];
}

void Time(const Shape& shape, uint64_t seed) {
  Problem problem(shape, seed);
  Check(cudaDeviceSynchronize(), "inputs");
  const int repeats = problem.flops() > 3e13 ? 10 : 20;
  const double rows = MedianMs([&] { problem.Rows(); }, repeats);
  const double columns = MedianMs([&] { problem.Columns(); }, repeats);
  const double zero = MedianMs([&] { problem.Zero(); }, repeats);
  const double finish = MedianMs([&] { problem.Finish(); }, repeats);
  const double bob = MedianMs([&] { problem.Run(); }, repeats);
  const double flops = problem.flops();
  std::printf(
      "{\"shape\": \"%s\", \"rows_ms\": %.4f, \"rows_tflops\": %.1f, \"columns_ms\": %.4f, "
      "\"columns_tflops\": %.1f, \"zero_ms\": %.4f, \"finish_ms\": %.4f, \"bob_ms\": %.4f, \"bob_tflops\": %.1f}\n",
      shape.text.c_str(), rows, flops / 3 / rows * 1e-9, columns, flops * 2 / 3 / columns * 1e-9, zero, finish, bob,
      flops / bob * 1e-9);
  std::fflush(stdout);
}

int Main(int argc, char** argv) {
  const uint64_t seed = std::random_device()();
  if (argc < 3) {
    std::fprintf(stderr, "usage: %s check|time SHAPE...\n", argv[0]);
    return 2;
  }
  std::fprintf(stderr, "seed %llu\n", static_cast<unsigned long long>(seed));
  bool good = true;
  for (int i = 2; i < argc; ++i) {
    const Shape shape = Parse(argv[i]);
    if (std::strcmp(argv[1], "check") == 0) {
      Problem problem(shape, seed + static_cast<uint64_t>(i) * 100);
      good &= problem.CheckErrors();
    } else {
      Time(shape, seed + static_cast<uint64_t>(i) * 100);
    }
  }
  return good ? 0 : 1;
}

}  // namespace
}  // namespace flashbob::benchmark

int main(int argc, char** argv) { return flashbob::benchmark::Main(argc, argv); }
