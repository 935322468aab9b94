// Forward on sm_90: a CTA owns 64 query rows a consumer warpgroup of a head and streams the keys that they see.
//
//     S = tau Q K^T     m = max of the row     P = exp(S - m)     O = P V / rowsum(P)     L = m + log rowsum(P)
//
// A producer warp (copy engine) and two or three consumer warpgroups. The scores of the next tile are queued before the
// second products of the tile at hand, whose P lies in registers as A operand: a warpgroup's exponentials run while its
// own second products and the other warpgroups' products do. Warpgroups take turns at queueing, so that they stay
// apart.
//
//   head dim   warpgroups   queries   key tile   stages   accumulators a thread
//   64         3            192       128        4        O 32, S 64, P 32
//   128        2            128       128        3        O 64, S 64, P 32
//
// Shared memory: Q, and rings of K and V: 152 and 224 KiB. FLOP: 4 x queries x keys x d.
#ifndef FLASHBOB_KERNELS_CUDA_HOPPER_FORWARD_CUH_
#define FLASHBOB_KERNELS_CUDA_HOPPER_FORWARD_CUH_

#include "kernels/cuda/hopper/mapped_args.h"
#include "kernels/cuda/hopper/state.cuh"
#include "kernels/cuda/hopper/walk.h"
#include "kernels/cuda/tile/hopper/barrier.cuh"
#include "kernels/cuda/tile/hopper/registers.cuh"
#include "kernels/cuda/tile/hopper/tma.cuh"
#include "kernels/cuda/tile/hopper/wgmma.cuh"

namespace flashbob::cuda::hopper {

template <typename T, int kHeadDim>
struct Forward {
  // The tensors, in the order of the maps.
  enum Map { kQ, kK, kV, kOut };

  static constexpr int kGroups = kHeadDim == 64 ? 3 : 2;  // consumer warpgroups
  static constexpr int kQueries = 64 * kGroups;
  static constexpr int kKeys = 128;
  using Walk = RowWalk;
  static constexpr int kHeadDimension = kHeadDim;
  static constexpr int kOwned = kQueries;
  static constexpr int kStreamed = kKeys;
  static constexpr bool kTakesTickets = false;
  static constexpr int kStages = kHeadDim == 64 ? 4 : 3;
  static constexpr int kPanels = kHeadDim / 64;
  static constexpr int kConsumers = 128 * kGroups;
  static constexpr int kThreads = kConsumers + 128;
  static constexpr int kConsumerRegisters = kGroups == 2 ? 240 : 160;

  static constexpr uint32_t kQueryPanel = kQueries * 128;
  static constexpr uint32_t kQueryTile = kPanels * kQueryPanel;
  static constexpr uint32_t kKeyPanel = kKeys * 128;
  static constexpr uint32_t kKeyTile = kPanels * kKeyPanel;
  // K and V have rings of their own: scores run a tile ahead of the second products.
  static constexpr uint32_t kStagesOffset = kQueryTile;
  static constexpr uint32_t kStageBytes = 2 * kKeyTile;
  static constexpr uint32_t kBarriersOffset = kStagesOffset + kStages * kStageBytes;
  static constexpr uint32_t kInfoOffset = kBarriersOffset + 16 + 32 * kStages;  // a word each: what Info names
  static constexpr uint32_t kSharedBytes = kInfoOffset + 4 * (8 + kStages);
  static_assert(kSharedBytes <= 232448);

  static constexpr int kScores = kKeys / 2;
  static constexpr int kSteps = kKeys / 16;
  static constexpr int kOutputs = kHeadDim / 2;
  static constexpr int64_t kStateBytes = kConsumers * (kOutputs + 4) * sizeof(float);

  // Words in shared memory: the CTA's number in the launch, whether it is the last of its parts, the mask, and the
  // first key of every stage. Consumers read them where they need them and keep no registers for them.
  enum Info { kNumber, kLast, kDiagonal, kDiagonals, kKeyEnd, kFirstKey = 8 };

  static constexpr uint32_t kWarpgroupBarrier = 1;  // + warpgroup
  static constexpr uint32_t kTurnBarrier = 4;       // + warpgroup whose turn it is to queue products

  using ScoreProduct = Wgmma<T, kKeys>;
  using OutputProduct = Wgmma<T, kHeadDim>;

  __device__ static uint32_t QueriesLoaded(uint32_t shared) { return shared + kBarriersOffset; }
  // `slot` 0: K; 1: V.
  __device__ static uint32_t Slot(uint32_t shared, uint32_t stage, uint32_t slot) {
    return shared + kStagesOffset + stage * kStageBytes + slot * kKeyTile;
  }
  __device__ static uint32_t Full(uint32_t shared, uint32_t stage, uint32_t slot) {
    return shared + kBarriersOffset + 16 + 32 * stage + 16 * slot;
  }
  __device__ static uint32_t Empty(uint32_t shared, uint32_t stage, uint32_t slot) {
    return Full(shared, stage, slot) + 8;
  }
  __device__ static constexpr uint32_t KeyStep(int step) { return step / 4 * kKeyPanel + step % 4 * 32; }
  __device__ static constexpr uint32_t QueryStep(int step) { return step / 4 * kQueryPanel + step % 4 * 32; }

  __device__ static uint32_t InfoAt(uint32_t shared, uint32_t word) { return shared + kInfoOffset + 4 * word; }

  __device__ static void InitBarriers(uint32_t shared) {
    InitBarrier(QueriesLoaded(shared), 1);
    for (int stage = 0; stage < kStages; ++stage) {
      for (int slot = 0; slot < 2; ++slot) {
        InitBarrier(Full(shared, stage, slot), 1);
        InitBarrier(Empty(shared, stage, slot), kConsumers / 32 * kArrivalsOfWarp);
      }
    }
  }

  __device__ static void StoreInfo(uint32_t shared, int64_t number, const RowWalk& walk) {
    const BandMask& mask = walk.item.sequence.mask;
    const DiagonalRange range(mask);
    StoreShared(InfoAt(shared, kNumber), static_cast<uint32_t>(number));
    StoreShared(InfoAt(shared, kDiagonal),
                static_cast<uint32_t>(-walk.query0 - static_cast<int32_t>(mask.shift) - range.lowest));
    StoreShared(InfoAt(shared, kDiagonals), range.count);
    StoreShared(InfoAt(shared, kKeyEnd), static_cast<uint32_t>(mask.key_len));
  }

  __device__ static void Produce(const MappedArgs& args, uint32_t shared, const RowWalk& walk, const WalkShare& share) {
    const CUtensorMap* const maps = MapsOf(args, walk.item);
    if (args.pass.sequences != nullptr) {
      for (int map = kQ; map <= kV; ++map) AcquireMap(maps + map);
    }
    const int32_t batch = BatchOf(args, walk.item);
    const int32_t head = walk.item.head;
    const uint32_t queries_loaded = QueriesLoaded(shared);
    ArriveExpectBytes(queries_loaded, kQueryTile);
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      LoadBox(shared + panel * kQueryPanel, maps + kQ, {panel * 64, walk.query0, head, batch, 0}, queries_loaded);
    }
    const int32_t kv_head = head / args.group;
    RingPosition<kStages> ring;
    for (int32_t step = share.begin; step < share.end; ++step) {
      const int32_t key0 = walk.Key0(step);
#pragma unroll
      for (uint32_t slot = 0; slot < 2; ++slot) {
        const uint32_t to = Slot(shared, ring.stage, slot);
        const uint32_t full = Full(shared, ring.stage, slot);
        Wait(Empty(shared, ring.stage, slot), ring.parity ^ 1);
        if (slot == 0) StoreShared(InfoAt(shared, kFirstKey + ring.stage), static_cast<uint32_t>(key0));
        ArriveExpectBytes(full, kKeyTile);
#pragma unroll
        for (int panel = 0; panel < kPanels; ++panel) {
          LoadBox(to + panel * kKeyPanel, maps + (slot == 0 ? kK : kV), {panel * 64, key0, kv_head, batch, 0}, full);
        }
      }
      ring.Advance();
    }
  }

  struct Consumer {
    float out[kOutputs];
    float s[kScores];
    uint32_t p[kSteps][4];
    // Of this lane's two rows: the largest scores so far, then the sums of this lane's P.
    float rows[4] = {-INFINITY, -INFINITY, 0, 0};
    float rescale[2];              // of what was summed before the tile at hand
    RingPosition<kStages> k_ring;  // of the next scores
    RingPosition<kStages> v_ring;  // of the next second products
    Operand queries;               // this warpgroup's rows of Q
    uint32_t shared;
    uint32_t warpgroup;
  };

  __device__ __forceinline__ static void IssueScores(Consumer& me) {
    const Operand k = Operand::Rows(Slot(me.shared, me.k_ring.stage, 0));
    me.queries.Refresh();
    Fence();
#pragma unroll
    for (int step = 0; step < kHeadDim / 16; ++step) {
      if (step == 0) {
        ScoreProduct::template Start<0, 0>(me.s, me.queries, k);
      } else {
        ScoreProduct::template Multiply<0, 0>(me.s, me.queries + QueryStep(step), k + KeyStep(step));
      }
    }
    Commit();
  }

  __device__ __forceinline__ static void IssueOutput(Consumer& me) {
    const Operand v = Operand::Transposed(Slot(me.shared, me.v_ring.stage, 1), kKeyPanel);
    Fence();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      OutputProduct::template Multiply<1>(me.out, me.p[step], v + step * 2048);
    }
    Commit();
  }

  // Whether a pair of a masked tile is visible: rows are queries, columns keys.
  struct PairTest {
    int32_t diagonal[2];  // of this lane's two rows and its column 0, above the lowest
    uint32_t count;
    int32_t columns;  // before the keys end

    PairTest() = default;
    __device__ explicit PairTest(const Consumer& me) {
      const auto info = [&](uint32_t word) { return static_cast<int32_t>(LoadShared(InfoAt(me.shared, word))); };
      const int32_t lane = static_cast<int32_t>(threadIdx.x % 32);
      const int32_t row = static_cast<int32_t>(threadIdx.x / 32 * 16) + lane / 4;
      const int32_t key = info(kFirstKey + me.k_ring.stage) + 2 * (lane % 4);
      count = static_cast<uint32_t>(info(kDiagonals));
      diagonal[0] = info(kDiagonal) + key - row;
      diagonal[1] = diagonal[0] - 8;
      columns = info(kKeyEnd) - key;
    }
    __device__ bool operator()(int row, int column) const {
      return static_cast<uint32_t>(diagonal[row] + column) <= count && column < columns;
    }
  };

  // This warp is done with the slot at hand.
  __device__ static void Release(uint32_t shared, RingPosition<kStages>& ring, uint32_t slot) {
    ArriveWarp(Empty(shared, ring.stage, slot));
    ring.Advance();
  }

  // What to subtract from scores of rows whose largest is `top`, in units of log 2. No key was seen where that is -inf.
  __device__ static float BaseOf(const MappedArgs& args, float top) {
    return top == -INFINITY ? 0.0f : top * args.score_scale;
  }

  // From the scores: P in place of them, their sum, and what the sums so far are to be multiplied by. kPending groups
  // of products behind the scores go on.
  template <bool kMasked, int kPending>
  __device__ __forceinline__ static void TakeScores(const MappedArgs& args, Consumer& me) {
    [[maybe_unused]] PairTest visible;
    if constexpr (kMasked) visible = PairTest(me);
    WaitFor<kPending>();
    Settle(me.s);
    Release(me.shared, me.k_ring, 0);
    float top[2][2] = {{me.rows[0], me.rows[1]}, {-INFINITY, -INFINITY}};
#pragma unroll
    for (int block = 0; block < kKeys / 8; ++block) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& s = me.s[4 * block + i];
        if constexpr (kMasked) s = visible(i / 2, 8 * block + i % 2) ? s : -INFINITY;
        top[i % 2][i / 2] = fmaxf(top[i % 2][i / 2], s);
      }
    }
    float base[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float row_top = LargestOfQuad(fmaxf(top[0][i], top[1][i]));
      base[i] = kMasked ? BaseOf(args, row_top) : row_top * args.score_scale;
      me.rescale[i] = Exp2(fmaf(me.rows[i], args.score_scale, -base[i]));
      me.rows[i] = row_top;
    }
    float sum[2][2] = {{me.rows[2] * me.rescale[0], me.rows[3] * me.rescale[1]}, {0, 0}};
#pragma unroll
    for (int block = 0; block < kKeys / 8; ++block) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& p = me.s[4 * block + i];
        p = Exp2(fmaf(p, args.score_scale, -base[i / 2]));
        sum[i % 2][i / 2] += p;
      }
    }
    me.rows[2] = sum[0][0] + sum[1][0];
    me.rows[3] = sum[0][1] + sum[1][1];
  }

  // Once no products are in flight: O so far by the same measure as the new P, and that rounded.
  __device__ __forceinline__ static void Rescale(Consumer& me) {
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) me.out[i] *= me.rescale[i / 2 % 2];
#pragma unroll
    for (int block = 0; block < kKeys / 8; ++block) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int at = 4 * block + 2 * i;
        me.p[block / 2][2 * (block % 2) + i] = RoundPair<T>(me.s[at], me.s[at + 1]);
      }
    }
  }

  // The second products of the tile whose P is taken, and the scores of the next, queued before.
  template <bool kMasked>
  __device__ __forceinline__ static void Step(const MappedArgs& args, Consumer& me) {
    Wait(Full(me.shared, me.k_ring.stage, 0), me.k_ring.parity);
    NamedSync(kTurnBarrier + me.warpgroup, 256);
    IssueScores(me);
    Wait(Full(me.shared, me.v_ring.stage, 1), me.v_ring.parity);
    IssueOutput(me);
    NamedArrive(kTurnBarrier + (me.warpgroup + 1) % kGroups, 256);
    TakeScores<kMasked, 1>(args, me);
    WaitFor<0>();
    Settle(me.out);
    Release(me.shared, me.v_ring, 1);
    Rescale(me);
  }

  // Adds what another part of this item summed.
  __device__ __forceinline__ static void Merge(const MappedArgs& args, Consumer& me, int64_t slot) {
    float rows[4] = {0, 0, 0, 0};
    float out[kOutputs];
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) out[i] = 0;
    AddState<kConsumers>(AddState<kConsumers>(StateOf(args.pass, slot, kStateBytes), rows), out);
    float ours[2];
    float theirs[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float top = fmaxf(me.rows[i], rows[i]);
      const float base = BaseOf(args, top);
      ours[i] = Exp2(fmaf(me.rows[i], args.score_scale, -base));
      theirs[i] = Exp2(fmaf(rows[i], args.score_scale, -base));
      me.rows[i] = top;
      me.rows[2 + i] = me.rows[2 + i] * ours[i] + rows[2 + i] * theirs[i];
    }
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) me.out[i] = me.out[i] * ours[i / 2 % 2] + out[i] * theirs[i / 2 % 2];
  }

  // O goes where Q was: this warpgroup's rows, which only it has read. A recomputed one goes out in fp32.
  __device__ __forceinline__ static void Finish(const MappedArgs& args, Consumer& me, const RowWalk& walk) {
    const PassArgs& pass = args.pass;
    const Item& item = walk.item;
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t row = threadIdx.x / 32 * 16 + lane / 4;
    float* exact_o[2] = {nullptr, nullptr};
    float factor[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float sum = SumOverQuad(me.rows[2 + i]);
      factor[i] = sum > 0 ? 1 / sum : 0;
      const int64_t query = walk.query0 + static_cast<int64_t>(row) + 8 * i;
      if (query >= item.sequence.mask.query_len) continue;
      const int64_t query_row = item.sequence.query_start + query;
      if (pass.out_lse.data != nullptr && lane % 4 == 0) {
        constexpr float kLog2 = 0.6931471805599453f;
        static_cast<float*>(pass.out_lse.data)[RowOffset(pass.out_lse, 0, item.sequence.index, item.head, query_row)] =
            sum > 0 ? fmaf(me.rows[i], args.score_scale, log2f(sum)) * kLog2 : -INFINITY;
      }
      if (pass.o_is_accumulator) {
        exact_o[i] =
            static_cast<float*>(pass.out.data) + RowOffset(pass.out, 0, item.sequence.index, item.head, query_row);
      }
    }
    if (pass.out.data == nullptr) return;
#pragma unroll
    for (int block = 0; block < kHeadDim / 8; ++block) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float first = me.out[4 * block + 2 * i] * factor[i];
        const float second = me.out[4 * block + 2 * i + 1] * factor[i];
        const int32_t column = 8 * block + 2 * static_cast<int32_t>(lane % 4);
        const uint32_t at =
            (block / 8) * kQueryPanel + (row + 8 * i) * 128 + (((block % 8) ^ (row % 8)) << 4) + (lane % 4) * 4;
        if (!pass.o_is_accumulator) {
          StoreShared(me.shared + at, RoundPair<T>(first, second));
        } else if (exact_o[i] != nullptr && column < pass.value_dim) {
          *reinterpret_cast<float2*>(exact_o[i] + column) = {first, second};
        }
      }
    }
    if (pass.o_is_accumulator) return;
    FenceForAsyncProxy();
    NamedSync(kWarpgroupBarrier + me.warpgroup, 128);
    if (threadIdx.x % 128 == 0) {
      const CUtensorMap* const map = MapsOf(args, item) + kOut;
      if (pass.sequences != nullptr) AcquireMap(map);
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
        StoreBox(map,
                 {panel * 64, walk.query0 + static_cast<int32_t>(me.warpgroup) * 64, item.head, BatchOf(args, item), 0},
                 me.shared + panel * kQueryPanel + me.warpgroup * 64 * 128);
      }
      CommitStores();
      WaitStores();
    }
  }

  __device__ __forceinline__ static void Consume(const MappedArgs& args, uint32_t shared, const RowWalk&,
                                                 const WalkShare& share, uint32_t warpgroup) {
    const PassArgs& pass = args.pass;
    Consumer me;
    me.shared = shared;
    me.warpgroup = warpgroup;
    me.queries = Operand::Rows(shared + warpgroup * 64 * 128);
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) me.out[i] = 0;
    if (share.resumes) {
      me.rows[0] = me.rows[1] = 0;
      AddState<kConsumers>(AddState<kConsumers>(StateOf(pass, blockIdx.x, kStateBytes), me.rows), me.out);
    }
    Wait(QueriesLoaded(shared), 0);
    const uint32_t steps = static_cast<uint32_t>(share.steps());
    const uint32_t masked = static_cast<uint32_t>(share.masked);
    if (steps > 0) {
      if (warpgroup == kGroups - 1) NamedArrive(kTurnBarrier, 256);
      Wait(Full(shared, 0, 0), 0);
      IssueScores(me);
      TakeScores<true, 0>(args, me);
      Rescale(me);
      uint32_t number = 0;
      for (; number + 1 < masked && number + 1 < steps; ++number) Step<true>(args, me);
      for (; number + 1 < steps; ++number) Step<false>(args, me);
      Wait(Full(shared, me.v_ring.stage, 1), me.v_ring.parity);
      IssueOutput(me);
      WaitFor<0>();
    }
    Settle(me.out);

    // Read again what the loops had no registers for.
    const int64_t number = LoadShared(InfoAt(shared, kNumber));
    const RowWalk walk(args, number, kQueries, kKeys);
    const bool suspends = WalkShare(pass, number, walk.steps, walk.masked_steps).suspends;
    if (suspends || pass.parts > 1) {
      SaveState<kConsumers>(SaveState<kConsumers>(StateOf(pass, number, kStateBytes), me.rows), me.out);
      if (suspends || !LastOfParts<kConsumers>(pass, number, InfoAt(shared, kLast))) return;
      const int64_t first_slot = number / pass.parts * pass.parts;
      // In the order of parts, so that the same bits come out every time.
#pragma unroll
      for (int i = 0; i < kOutputs; ++i) me.out[i] = 0;
      me.rows[0] = me.rows[1] = -INFINITY;
      me.rows[2] = me.rows[3] = 0;
      for (int64_t part = 0; part < pass.parts; ++part) Merge(args, me, first_slot + part);
    }
    Finish(args, me, walk);
  }
};

}  // namespace flashbob::cuda::hopper

#endif  // FLASHBOB_KERNELS_CUDA_HOPPER_FORWARD_CUH_
