// What the two BoB kernels of sm_90 take, and their launchers.
//
// One launch serves every head and batch entry of one set of cotangents, in any layout whose rows are contiguous:
// tensors come as tensor maps (tensor_map.h). Launchers neither allocate nor wait. Buffers are the caller's.
//
//   rows     gdO, and row_scalars for the column pass
//   columns  gK, gV, and gQ summed into gq_sum, which is zero before
//   finish   gQ from gq_sum
#ifndef FLASHBOB_KERNELS_CUDA_HOPPER_BOB_PARAMS_H_
#define FLASHBOB_KERNELS_CUDA_HOPPER_BOB_PARAMS_H_

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/mask.h"

namespace flashbob::cuda::hopper {

enum class HalfType : uint8_t { kBFloat16, kFloat16 };

// Rows of row_scalars and gq_sum per head are padded to a multiple of this.
inline constexpr int32_t kRowPadding = 128;

FLASHBOB_HOST_DEVICE constexpr int64_t PaddedRows(int64_t query_len) {
  return (query_len + kRowPadding - 1) / kRowPadding * kRowPadding;
}

// Floats of row_scalars per padded row. Rows come in blocks of 32: 32 of L log2(e) - power_shift (+inf where P must be
// 0), then 32 of D, of c, of r.
inline constexpr int32_t kRowScalars = 4;

// Which heads and blocks a launch does, and in which order: heads in chunks, within a chunk the blocks that walk
// furthest first, so that the last CTAs are short ones.
struct Schedule {
  int32_t heads = 0;  // of the owning side, over all batch entries
  int32_t heads_per_chunk = 1;
  int32_t blocks = 0;  // per head
  int64_t item_begin = 0;
};

// Rows that a CTA owns, in either pass.
inline constexpr int32_t kOwnedRows = 128;

// The schedule of all of `heads`, whose CTAs own blocks of `owned_rows`.
Schedule MakeSchedule(int64_t heads, int64_t owned_rows);
// CTAs that it takes.
inline int64_t BobItems(const Schedule& schedule) { return static_cast<int64_t>(schedule.heads) * schedule.blocks; }

// power_shift of a problem: 0 for bf16, whose range is fp32's.
int32_t PowerShift(HalfType type, int64_t key_len);

struct RowsParams {
  CUtensorMap q, uq;         // boxes of 128 rows
  CUtensorMap k, uk, v, uv;  // boxes of RowsKeys(head_dim) rows
  CUtensorMap o, dout;       // boxes of 128 rows
  CUtensorMap gdo;           // boxes of 64 rows
  const float* lse;          // element (batch, head, row) by the strides
  int64_t lse_batch, lse_head, lse_row;
  float* row_scalars;  // [batch * heads][PaddedRows][kRowScalars]
  BandMask mask;
  Schedule schedule;
  int32_t heads;
  int32_t group;  // query heads a kv head
  float scale;
  float score_scale;    // scale * log2(e)
  int32_t power_shift;  // P and P.G are rounded times 2^power_shift
};

struct ColumnsParams {
  CUtensorMap k, uk, v, uv;  // boxes of 128 rows
  CUtensorMap q, uq, dout;   // boxes of ColumnsQueries(head_dim) rows
  CUtensorMap gk, gv;        // boxes of 64 rows
  const float* row_scalars;  // as written by the rows pass
  float* gq_sum;             // [batch * heads][PaddedRows][head_dim], in the order of the accumulators
  BandMask mask;
  Schedule schedule;  // heads are kv heads
  int32_t kv_heads;
  int32_t group;
  float scale;
  float score_scale;  // scale * log2(e)
  int32_t power_shift;
};

struct FinishParams {
  const float* gq_sum;
  void* gq;  // element (batch, head, row, column) by the strides
  int64_t gq_batch, gq_head, gq_row;
  int32_t heads;
  int32_t batch;
  int32_t query_len;
  float factor;  // scale * 2^-power_shift
};

FLASHBOB_HOST_DEVICE constexpr int32_t RowsKeys(int32_t head_dim) { return head_dim == 64 ? 96 : 80; }
FLASHBOB_HOST_DEVICE constexpr int32_t ColumnsQueries(int32_t head_dim) { return head_dim == 64 ? 64 : 32; }

// head_dim is 64 or 128. `items` from schedule.item_begin on, at most heads * blocks in all, blocks of 128 rows.
cudaError_t LaunchBobRows(HalfType type, int32_t head_dim, const RowsParams& params, int64_t items,
                          cudaStream_t stream);
cudaError_t LaunchBobColumns(HalfType type, int32_t head_dim, const ColumnsParams& params, int64_t items,
                             cudaStream_t stream);
cudaError_t LaunchBobFinish(HalfType type, int32_t head_dim, const FinishParams& params, cudaStream_t stream);

}  // namespace flashbob::cuda::hopper

#endif  // FLASHBOB_KERNELS_CUDA_HOPPER_BOB_PARAMS_H_
