// The producer of the column pass of BoB: one thread keeps the copy engine busy.
#ifndef FLASHBOB_KERNELS_CUDA_HOPPER_BOB_COLUMNS_PRODUCER_CUH_
#define FLASHBOB_KERNELS_CUDA_HOPPER_BOB_COLUMNS_PRODUCER_CUH_

#include "kernels/cuda/hopper/mapped_args.h"
#include "kernels/cuda/hopper/walk.h"
#include "kernels/cuda/tile/hopper/barrier.cuh"
#include "kernels/cuda/tile/hopper/registers.cuh"
#include "kernels/cuda/tile/hopper/tma.cuh"

namespace flashbob::cuda::hopper {

// Kernel is a BobColumns: where everything lies in shared memory. First the block of keys, then, stage by stage, the
// tiles of queries with their row scalars and what Kernel::Info says of a stage.
template <typename Kernel>
__device__ void ProduceColumns(const MappedArgs& args, uint32_t shared, const ColumnWalk& walk,
                               const WalkShare& share) {
  const PassArgs& pass = args.pass;
  const Item& item = walk.item;
  const CUtensorMap* const maps = MapsOf(args, item);
  if (pass.sequences != nullptr) {
    for (int map = Kernel::kK; map <= Kernel::kDout; ++map) AcquireMap(maps + map);
  }
  PrefetchMap(maps + Kernel::kQ);
  PrefetchMap(maps + Kernel::kUq);
  PrefetchMap(maps + Kernel::kDout);
  const int32_t batch = BatchOf(args, item);
  const uint32_t keys_loaded = Kernel::KeysLoaded(shared);
  ArriveExpectBytes(keys_loaded, 4 * Kernel::kKeyTile);
#pragma unroll
  for (int tensor = Kernel::kK; tensor <= Kernel::kUv; ++tensor) {
    const int32_t probe = ProbeOf(args, tensor, tensor == Kernel::kUk || tensor == Kernel::kUv ? item.probe : 0);
#pragma unroll
    for (int panel = 0; panel < Kernel::kPanels; ++panel) {
      LoadBox(shared + Kernel::kKeysOffset + tensor * Kernel::kKeyTile + panel * Kernel::kKeyPanel, maps + tensor,
              {panel * 64, walk.key0, item.head, batch, probe}, keys_loaded);
    }
  }
  const int32_t uq_probe = ProbeOf(args, Kernel::kUq, item.probe);
  const int32_t dout_probe = ProbeOf(args, Kernel::kDout, 0);
  // Of the first head of the group.
  const int32_t first_head = item.head * args.group;
  const int64_t first_row = FirstPaddedRow(pass, item);
  const int64_t first_scalar = RowOffset(pass.row_scalars, item.probe, item.sequence.index, first_head, first_row);
  constexpr int64_t kTile = Kernel::kQueries * Kernel::kHeadDimension;
  const uint32_t first_tile =
      static_cast<uint32_t>(RowOffset(pass.gq_sum, item.probe, item.sequence.index, first_head, first_row) / kTile);
  const uint32_t tiles_of_head = static_cast<uint32_t>(pass.gq_sum.head / kTile);
  TileRange before;
  if (Kernel::kOrderedAdds && item.block > 0)
    before = QueryTiles(item.sequence.mask, item.block - 1, Kernel::kKeys, Kernel::kQueries);
  RingPosition<Kernel::kStages> ring;
  for (int32_t step = share.begin; step < share.end; ++step) {
    const ColumnStep at = walk.At(step);
    const uint32_t stage = shared + Kernel::kStagesOffset + ring.stage * Kernel::kStageBytes;
    const uint32_t full = Kernel::FullStage(shared, ring.stage);
    Wait(Kernel::EmptyStage(shared, ring.stage), ring.parity ^ 1);
    const int32_t head = first_head + at.head_in_group;
    uint32_t tile = first_tile + static_cast<uint32_t>(at.head_in_group) * tiles_of_head +
                    static_cast<uint32_t>(at.query0 / Kernel::kQueries);
    if (Kernel::kOrderedAdds && at.query0 / Kernel::kQueries >= before.begin &&
        at.query0 / Kernel::kQueries < before.end)
      tile |= Kernel::kAwait;
    StoreShared(Kernel::InfoAt(shared, Kernel::kStage + 2 * ring.stage), static_cast<uint32_t>(at.query0));
    StoreShared(Kernel::InfoAt(shared, Kernel::kStage + 2 * ring.stage + 1), tile);
    ArriveExpectBytes(full, Kernel::kLoadedBytes);
#pragma unroll
    for (int panel = 0; panel < Kernel::kPanels; ++panel) {
      LoadBox(stage + panel * Kernel::kQueryPanel, maps + Kernel::kQ, {panel * 64, at.query0, head, batch, 0}, full);
      LoadBox(stage + panel * Kernel::kQueryPanel + Kernel::kQueryBox, maps + Kernel::kUq,
              {panel * 64, at.query0, head, batch, uq_probe}, full);
      LoadBox(stage + Kernel::kOutOffset + panel * Kernel::kQueryBox, maps + Kernel::kDout,
              {panel * 64, at.query0, head, batch, dout_probe}, full);
    }
    const int64_t row = first_scalar + at.head_in_group * pass.row_scalars.head + at.query0;
    LoadBytes(stage + Kernel::kScalarOffset, static_cast<const float*>(pass.row_scalars.data) + row * kRowScalars,
              Kernel::kScalarBytes, full);
    ring.Advance();
  }
}

}  // namespace flashbob::cuda::hopper

#endif  // FLASHBOB_KERNELS_CUDA_HOPPER_BOB_COLUMNS_PRODUCER_CUH_
