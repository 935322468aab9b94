// Small copies between page-locked host memory and the device in one launch: to[i] = from[i], every byte once over the
// link. CTA (x, y) has a share of piece y: a thread has four reads of 16 bytes under way, 64 bytes; a CTA of 128
// threads 8 KiB.
#include <algorithm>

#include "kernels/cuda/copies.h"

namespace flashbob::cuda {
namespace {

constexpr int kThreads = 128;
// A read of host memory takes microseconds: each thread has some under way.
constexpr int kUnderWay = 4;
constexpr size_t kMostCtas = 32;

__global__ void __launch_bounds__(kThreads) CopyPieces(const Copies copies) {
  const Copies::Piece& piece = copies.pieces[blockIdx.y];
  const auto* const from = static_cast<const uint4*>(piece.from);
  auto* const to = static_cast<uint4*>(piece.to);
  const size_t count = piece.bytes / sizeof(uint4);
  const size_t stride = size_t{gridDim.x} * kThreads;
  for (size_t first = size_t{blockIdx.x} * kThreads + threadIdx.x; first < count; first += stride * kUnderWay) {
    uint4 values[kUnderWay];
#pragma unroll
    for (int i = 0; i < kUnderWay; ++i) {
      if (first + i * stride < count) values[i] = from[first + i * stride];
    }
#pragma unroll
    for (int i = 0; i < kUnderWay; ++i) {
      if (first + i * stride < count) to[first + i * stride] = values[i];
    }
  }
}

}  // namespace

cudaError_t LaunchCopies(const Copies& copies, cudaStream_t stream) {
  size_t largest = 0;
  for (int32_t i = 0; i < copies.count; ++i) largest = std::max(largest, copies.pieces[i].bytes);
  if (largest == 0) return cudaSuccess;
  constexpr size_t kBytesOfCta = sizeof(uint4) * kThreads * kUnderWay;
  const size_t ctas = std::min((largest + kBytesOfCta - 1) / kBytesOfCta, kMostCtas);
  void* parameters[] = {const_cast<Copies*>(&copies)};
  return cudaLaunchKernel(reinterpret_cast<const void*>(&CopyPieces),
                          dim3(static_cast<unsigned>(ctas), static_cast<unsigned>(copies.count)), dim3(kThreads),
                          parameters, 0, stream);
}

}  // namespace flashbob::cuda
