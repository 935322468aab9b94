// PassArgs: what every kernel of every pass takes, by value. PassKernel: what a plan must know of a kernel.
//
// Plain data, shared by host and device. A pass is an enumeration of *items*; one CTA does one item: it owns a block of
// rows (queries in the forward and rows passes, keys in the column pass) of one head and streams tiles of the other
// side. A launch does the items [item_begin, item_begin + gridDim.x) over the tiles [tile_begin, tile_end) of each
// item's walk; an item that began in an earlier launch, or ends in a later one, leaves its accumulators in `state`.
#ifndef FLASHBOB_KERNELS_CUDA_PASS_H_
#define FLASHBOB_KERNELS_CUDA_PASS_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace flashbob::cuda {

// A tensor: element (probe p, batch b, head h, row n, column x) at data + p * probe + b * batch + h * head + n * row +
// x. Null data: the tensor is absent (an input of zeros, an output that nobody wants).
struct TensorView {
  void* data = nullptr;
  int64_t probe = 0;
  int64_t batch = 0;
  int64_t head = 0;
  int64_t row = 0;
};

// One packed sequence.
struct SequenceInfo {
  int64_t query_start;
  int64_t key_start;
  int32_t query_len;
  int32_t key_len;
  int64_t first_query_block;  // blocks of earlier sequences, per head, in blocks of the row passes
  int64_t first_key_block;    // the same in blocks of the column pass
  int64_t first_padded_row;  // query rows of earlier sequences, each padded as the sums of gQ are (KernelSet::sum_rows)
};

// Scalars of one query row and probe, as the column pass reads them. `lse` is in the units of the kernels' exponential:
// L * lse_factor - lse_shift, and +inf where L is -inf.
template <typename Real>
struct alignas(4 * sizeof(Real)) RowScalars {
  Real lse;
  Real d;  // D = rowsum(do . o)
  Real c;
  Real r;  // r = rowsum(do . gdo) + rowsum(tdo . o)
};

struct PassArgs {
  // The problem. Uniform lengths where `sequences` is null; it has `batch` entries and one more that ends the prefixes.
  const SequenceInfo* sequences = nullptr;
  int32_t batch = 0;
  int32_t heads = 0;
  int32_t kv_heads = 0;
  int32_t probes = 1;
  int32_t head_dim = 0;
  int32_t value_dim = 0;
  int32_t query_len = 0;
  int32_t key_len = 0;
  int64_t query_blocks = 0;  // per head, over all sequences
  int64_t key_blocks = 0;
  int64_t window_left = -1;
  int64_t window_right = -1;
  bool bottom_right = false;
  bool long_walks_first = false;  // query blocks from the last to the first: under a causal mask the last walk furthest
  double scale = 1;

  int32_t row_alignment = 16;  // bytes, of where rows begin: 16, or 4 or 2 for general kernels

  // fp16: P, P.G, X, Y and Z are multiplied by 2^power_shift before they are rounded. Otherwise 0.
  int32_t power_shift = 0;

  TensorView q, k, v, o, lse;
  TensorView dout;                // do
  TensorView tq, tk, tv;          // cotangents u or tangents t
  TensorView tdo;                 // the column pass of backward has do here
  TensorView out;                 // forward: o; rows pass: gdo or to
  TensorView out_lse;             // forward: lse; rows pass: tlse
  TensorView gq, gk, gv;          // column pass and finish
  bool o_is_accumulator = false;  // o is in the accumulator's type (recomputed), not in the problem's

  // Workspace. Row index: probe, batch, head, row by the strides of `row_scalars`.
  TensorView row_scalars;  // RowScalars<Real>
  TensorView gq_sum;       // gQ before scaling, [.., row, head_dim] of Real
  double lse_factor = 1;   // RowScalars::lse = L * lse_factor - lse_shift, in the units of the column kernel
  double lse_shift = 0;
  bool write_row_scalars = false;

  // Deterministic column pass: the order of the adds to gq_sum. Zero before the first launch of the pass.
  int32_t* turn = nullptr;  // per probe, row tile: the key block whose turn it is
  int64_t turn_tiles = 0;   // tiles of turn per (probe, head), over all sequences
  int32_t* ticket = nullptr;

  // This launch.
  int64_t item_begin = 0;
  int64_t tile_begin = 0;
  int64_t tile_end = INT64_MAX;
  void* state = nullptr;  // one slot of PassKernel::state_bytes a CTA; null where no item is split

  // Kernels that say so (PassKernel) know these too.
  int32_t interleave = 1;         // heads whose blocks take turns in the order of items
  int32_t parts = 1;              // CTAs that share an item's walk; their sums meet in `state`
  int32_t* arrivals = nullptr;    // per item of the launch: parts that are done. Zero before and after.
  void* sequence_maps = nullptr;  // tensor maps of packed sequences, made by the launch (hopper/mapped_args.h)
};

// One kernel, and how it is launched.
struct PassKernel {
  const char* name;
  int32_t owned;     // rows that a CTA owns
  int32_t streamed;  // rows of a streamed tile
  int32_t threads;
  int32_t ctas_per_sm;     // that fit at once
  size_t shared_bytes;     // dynamic
  size_t state_bytes;      // of an item that is split over launches
  double flops_per_sm;     // sustained rate of one multiprocessor, FLOP/s; for cutting slices
  const void* function;    // __global__ void(PassArgs), unless `launch` says otherwise
  int32_t filled_dim = 0;  // narrower rows are filled with zeros up to here, and cost as much
  // Launches `ctas` of a kernel that takes more than PassArgs. Neither allocates nor waits.
  cudaError_t (*launch)(const PassKernel& kernel, const PassArgs& args, int64_t ctas, cudaStream_t stream) = nullptr;
  int32_t interleave = 1;  // PassArgs::interleave
  // Tiles of a walk are counted from its own first one, without gaps between heads (tile_begin, tile_end), and several
  // CTAs may share a walk (PassArgs::parts).
  bool compact_walk = false;
};

}  // namespace flashbob::cuda

#endif  // FLASHBOB_KERNELS_CUDA_PASS_H_
