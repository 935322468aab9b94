#include "kernels/cuda/hopper/tensor_map.h"

namespace flashbob::cuda::hopper {
namespace {

using EncodeFunction = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                                    const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                                    CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

cudaError_t FindEncode(EncodeFunction* encode) {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &result);
  if (error != cudaSuccess) return error;
  if (result != cudaDriverEntryPointSuccess || entry == nullptr) return cudaErrorNotSupported;
  *encode = reinterpret_cast<EncodeFunction>(entry);
  return cudaSuccess;
}

}  // namespace

cudaError_t MakeTensorMap(HalfType type, const MappedTensor& tensor, int32_t box_rows, CUtensorMap* map) {
  EncodeFunction encode = nullptr;
  const cudaError_t error = FindEncode(&encode);
  if (error != cudaSuccess) return error;
  constexpr int64_t kElementBytes = 2;
  const cuuint64_t extents[4] = {static_cast<cuuint64_t>(tensor.columns), static_cast<cuuint64_t>(tensor.rows),
                                 static_cast<cuuint64_t>(tensor.heads), static_cast<cuuint64_t>(tensor.batch)};
  const cuuint64_t strides[3] = {static_cast<cuuint64_t>(tensor.row_stride * kElementBytes),
                                 static_cast<cuuint64_t>(tensor.head_stride * kElementBytes),
                                 static_cast<cuuint64_t>(tensor.batch_stride * kElementBytes)};
  const cuuint32_t box[4] = {64, static_cast<cuuint32_t>(box_rows), 1, 1};
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  const CUresult result =
      encode(map, type == HalfType::kBFloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4,
             tensor.data, extents, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace flashbob::cuda::hopper
