#include "kernels/cuda/hopper/launch.h"

#include <atomic>
#include <numbers>

#include "kernels/cuda/hopper/sequence_maps.h"

namespace flashbob::cuda::hopper {
namespace {

constexpr int64_t kElementBytes = 2;

using EncodeFunction = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                                    const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                                    CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

cudaError_t FindEncode(EncodeFunction* encode) {
  // One for the whole process, and a search by name takes as long as a launch.
  static std::atomic<EncodeFunction> found = nullptr;
  *encode = found.load(std::memory_order_relaxed);
  if (*encode != nullptr) return cudaSuccess;
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &result);
#else
  const cudaError_t error = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &entry, cudaEnableDefault, &result);
#endif
  if (error != cudaSuccess) return error;
  if (result != cudaDriverEntryPointSuccess || entry == nullptr) return cudaErrorNotSupported;
  *encode = reinterpret_cast<EncodeFunction>(entry);
  found.store(*encode, std::memory_order_relaxed);
  return cudaSuccess;
}

// The map of `tensor`, of data that is somewhere in device memory where it is absent: its probe axis then has one
// entry, and kernels read the second.
cudaError_t MakeMap(EncodeFunction encode, HalfType type, const PassArgs& args, const MappedTensor& tensor,
                    void* somewhere, CUtensorMap* map) {
  const bool absent = tensor.view.data == nullptr;
  const bool packed = args.sequences != nullptr;
  const auto extent = [](int64_t value) { return static_cast<cuuint64_t>(value > 0 ? value : 1); };
  const cuuint64_t extents[5] = {extent(tensor.width),
                                 extent(packed        ? 1
                                        : tensor.keys ? args.key_len
                                                      : args.query_len),
                                 extent(tensor.keys ? args.kv_heads : args.heads), extent(packed ? 1 : args.batch),
                                 extent(absent || !tensor.probed ? 1 : args.probes)};
  const int64_t elements[4] = {tensor.view.row, tensor.view.head, tensor.view.batch, tensor.view.probe};
  cuuint64_t strides[4];
  for (int i = 0; i < 4; ++i) {
    // The stride of an axis of one entry is nobody's, but must be a valid one.
    strides[i] = static_cast<cuuint64_t>(absent || elements[i] == 0 ? 16 : elements[i] * kElementBytes);
  }
  const cuuint32_t box[5] = {64, static_cast<cuuint32_t>(tensor.box_rows), 1, 1, 1};
  const cuuint32_t steps[5] = {1, 1, 1, 1, 1};
  const CUresult result =
      encode(map, type == HalfType::kBFloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 5,
             absent ? somewhere : tensor.view.data, extents, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return static_cast<cudaError_t>(result);  // the driver's errors have the runtime's numbers
}

}  // namespace

cudaError_t LaunchMapped(const PassKernel& kernel, HalfType type, const PassArgs& args,
                         std::initializer_list<MappedTensor> tensors, int64_t ctas, cudaStream_t stream) {
  EncodeFunction encode = nullptr;
  cudaError_t error = FindEncode(&encode);
  if (error != cudaSuccess) return error;
  MappedArgs mapped = {};
  mapped.pass = args;
  mapped.group = args.heads / args.kv_heads;
  mapped.scale = static_cast<float>(args.scale);
  mapped.score_scale = static_cast<float>(args.scale * std::numbers::log2e);
  void* somewhere = nullptr;
  for (const MappedTensor& tensor : tensors) {
    if (tensor.view.data != nullptr) somewhere = tensor.view.data;
  }
  SequenceMapArgs sequences = {};
  for (const MappedTensor& tensor : tensors) {
    const int32_t m = sequences.count++;
    error = MakeMap(encode, type, args, tensor, somewhere, &mapped.maps[m]);
    if (error != cudaSuccess) return error;
    const bool absent = tensor.view.data == nullptr;
    if (absent) mapped.absent |= 1u << m;
    sequences.maps[m] = mapped.maps[m];
    sequences.data[m] = absent ? somewhere : tensor.view.data;
    sequences.row_bytes[m] = absent ? 0 : tensor.view.row * kElementBytes;
    if (tensor.keys) sequences.keys |= 1u << m;
  }
  if (args.sequences != nullptr) {
    sequences.sequences = args.sequences;
    sequences.batch = args.batch;
    sequences.to = static_cast<CUtensorMap*>(args.sequence_maps);
    error = MakeSequenceMaps(sequences, stream);
    if (error != cudaSuccess) return error;
  }
  error = cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(kernel.shared_bytes));
  if (error != cudaSuccess) return error;
  void* parameters[] = {&mapped};
  return cudaLaunchKernel(kernel.function, dim3(static_cast<unsigned>(ctas)),
                          dim3(static_cast<unsigned>(kernel.threads)), parameters, kernel.shared_bytes, stream);
}

}  // namespace flashbob::cuda::hopper
