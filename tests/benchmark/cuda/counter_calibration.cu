// Moves a known number of bytes from L2 to the multiprocessors and back, one kernel a path, so that ncu's counters can
// be held against it:
//
//   nvcc -std=c++20 -arch=sm_90a -o counter_calibration counter_calibration.cu
//   ncu --clock-control none --cache-control none --metrics l1tex__m_xbar2l1tex_read_bytes.sum,... counter_calibration
//
// Every kernel reads (or adds to) one region of 8 MB, which L2 keeps, 264 times over: 2.2 GB. A CTA takes the region's
// 16 KB blocks in turn, as the kernels of attention take tiles.
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>

namespace {

constexpr int kThreads = 256;
constexpr int kBlockBytes = 16 << 10;
constexpr int kBlocks = 512;  // of the region
constexpr int kSweeps = 264;  // CTAs, each over the whole region
constexpr int kChunks = kBlockBytes / 16 / kThreads;

// cp.async, 16 bytes, past L1, of rows of 128 bytes to rows of `pitch` bytes in shared memory. `swap`: with the 16-byte
// halves of sectors swapped in rows 4 to 7 of every eight.
__global__ void CopyAsync(const char* region, int pitch, bool swap, int* sink) {
  __shared__ __align__(128) char tile[kBlockBytes / 128 * 160];
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(tile));
  for (int i = 0; i < kBlocks; ++i) {
    const char* from = region + static_cast<int64_t>(i) * kBlockBytes;
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const int at = (chunk * kThreads + static_cast<int>(threadIdx.x)) * 16;
      const int row = at / 128;
      const int there = row * pitch + (at % 128 ^ (swap ? row / 4 % 2 * 16 : 0));
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(to + there), "l"(from + at) : "memory");
    }
    asm volatile("cp.async.commit_group;\ncp.async.wait_group 0;\n" ::: "memory");
    __syncthreads();
  }
  if (tile[threadIdx.x] == 1) *sink = 1;
}

// ld.global, 16 bytes, past L1.
__global__ void LoadGlobal(const char* region, int* sink) {
  uint32_t sum = 0;
  for (int i = 0; i < kBlocks; ++i) {
    const char* from = region + static_cast<int64_t>((i + blockIdx.x * 8) % kBlocks) * kBlockBytes;
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const uint4 x = __ldcg(reinterpret_cast<const uint4*>(from) + chunk * kThreads + threadIdx.x);
      sum += x.x ^ x.y ^ x.z ^ x.w;
    }
  }
  if (sum == 1) *sink = 1;
}

// red.global.add.v4.f32 (9.0 and up), 16 bytes.
__global__ void Reduce(char* region) {
#if __CUDA_ARCH__ >= 900
  for (int i = 0; i < kBlocks; ++i) {
    char* to = region + static_cast<int64_t>((i + blockIdx.x * 8) % kBlocks) * kBlockBytes;
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      float* at = reinterpret_cast<float*>(to) + (chunk * kThreads + threadIdx.x) * 4;
      asm volatile("red.global.add.v4.f32 [%0], {%1, %1, %1, %1};\n" ::"l"(at), "f"(0.0f) : "memory");
    }
  }
#endif
}

bool Ok(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return true;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  return false;
}

}  // namespace

int main() {
  char* region = nullptr;
  int* sink = nullptr;
  constexpr size_t kBytes = size_t{kBlocks} * kBlockBytes;
  if (!Ok(cudaMalloc(&region, kBytes), "cudaMalloc") || !Ok(cudaMalloc(&sink, sizeof(int)), "cudaMalloc")) return 1;
  if (!Ok(cudaMemset(region, 0, kBytes), "cudaMemset")) return 1;
  LoadGlobal<<<kSweeps, kThreads>>>(region, sink);
  CopyAsync<<<kSweeps, kThreads>>>(region, 128, false, sink);
  CopyAsync<<<kSweeps, kThreads>>>(region, 144, false, sink);
  CopyAsync<<<kSweeps, kThreads>>>(region, 160, false, sink);
  CopyAsync<<<kSweeps, kThreads>>>(region, 160, true, sink);
  Reduce<<<kSweeps, kThreads>>>(region);
  if (!Ok(cudaGetLastError(), "launching") || !Ok(cudaDeviceSynchronize(), "running")) return 1;
  std::printf("%zu bytes a kernel\n", kBytes * kSweeps);
  return 0;
}
