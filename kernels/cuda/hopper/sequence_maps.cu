#include "kernels/cuda/hopper/sequence_maps.h"

namespace flashbob::cuda::hopper {
namespace {

constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads) SequenceMaps(const __grid_constant__ SequenceMapArgs args) {
  const int32_t number = static_cast<int32_t>(blockIdx.x * kThreads + threadIdx.x);
  const int32_t sequence = number / args.count;
  const int32_t tensor = number % args.count;
  if (sequence >= args.batch) return;
  const SequenceInfo& info = args.sequences[sequence];
  const bool keys = args.keys >> tensor & 1;
  const int32_t rows = keys ? info.key_len : info.query_len;
  const int64_t start = keys ? info.key_start : info.query_start;
  CUtensorMap* const map = args.to + static_cast<int64_t>(sequence) * kMaxMaps + tensor;
  const auto* from = reinterpret_cast<const uint4*>(&args.maps[tensor]);
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(CUtensorMap) / sizeof(uint4)); ++i) {
    reinterpret_cast<uint4*>(map)[i] = from[i];
  }
  const auto at = __cvta_generic_to_global(map);
  const char* const data = static_cast<const char*>(args.data[tensor]) + start * args.row_bytes[tensor];
  asm volatile("tensormap.replace.tile.global_address.global.b1024.b64 [%0], %1;" ::"l"(at), "l"(data) : "memory");
  // A sequence without rows is never read; no map may be empty.
  asm volatile("tensormap.replace.tile.global_dim.global.b1024.b32 [%0], 1, %1;" ::"l"(at), "r"(rows > 0 ? rows : 1)
               : "memory");
  asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory");
}

}  // namespace

cudaError_t MakeSequenceMaps(const SequenceMapArgs& args, cudaStream_t stream) {
  const int64_t maps = static_cast<int64_t>(args.batch) * args.count;
  if (maps == 0) return cudaSuccess;
  SequenceMaps<<<static_cast<unsigned>((maps + kThreads - 1) / kThreads), kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace flashbob::cuda::hopper
