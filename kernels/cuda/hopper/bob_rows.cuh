// The rows pass of BoB and of the JVP on sm_90: a CTA owns 128 query rows of a head and streams the keys that they see.
//
//     P = exp(S - L)      G = tau (uQ K^T + Q uK^T)      c = rowsum(P . G)
//     gdO = (P . G) V + P uV - c O      r = rowsum(dO . gdO)      D = rowsum(dO . O)
//
// (The JVP has t for u, to for gdO and tlse for c.)
// 384 threads: a producer warp (copy engine) and two consumer warpgroups of 64 rows each. P and P.G are A operands of
// the second products as they lie in registers. The products of a tile and the scores of the next are queued together;
// P is taken while G is still computed. The last stage brings O and dO for the epilogue.
//
//   head dim   key tile   stages   Q and uQ           accumulators a thread
//   64         96         3        in registers, 32   gdO 32, S 48, G 48, operands 48
//   128        80         2        in shared memory   gdO 64, S 40, G 40, operands 40
//
// Shared memory: Q, uQ and stages of K, uK, V, uV: 176 KiB and 224 KiB. FLOP: 10 x 128 x keys x d.
#ifndef FLASHBOB_KERNELS_CUDA_HOPPER_BOB_ROWS_CUH_
#define FLASHBOB_KERNELS_CUDA_HOPPER_BOB_ROWS_CUH_

#include "kernels/cuda/hopper/mapped_args.h"
#include "kernels/cuda/hopper/state.cuh"
#include "kernels/cuda/hopper/walk.h"
#include "kernels/cuda/tile/hopper/barrier.cuh"
#include "kernels/cuda/tile/hopper/registers.cuh"
#include "kernels/cuda/tile/hopper/tma.cuh"
#include "kernels/cuda/tile/hopper/wgmma.cuh"

namespace flashbob::cuda::hopper {

template <typename T, int kHeadDim>
struct BobRows {
  // The tensors, in the order of the maps.
  enum Map { kQ, kUq, kK, kUk, kV, kUv, kO, kDout, kOut };

  static constexpr int kQueries = 128;
  static constexpr int kKeys = kHeadDim == 64 ? 96 : 80;
  using Walk = RowWalk;
  static constexpr int kHeadDimension = kHeadDim;
  static constexpr int kOwned = kQueries;
  static constexpr int kStreamed = kKeys;
  static constexpr bool kTakesTickets = false;
  static constexpr int kStages = kHeadDim == 64 ? 3 : 2;
  static constexpr int kPanels = kHeadDim / 64;
  static constexpr int kThreads = 384;
  static constexpr int kConsumers = 256;
  static constexpr int kConsumerRegisters = 240;
  static constexpr bool kQueriesInRegisters = kHeadDim == 64;

  static constexpr uint32_t kQueryPanel = kQueries * 128;
  static constexpr uint32_t kQueryTile = kPanels * kQueryPanel;
  static constexpr uint32_t kKeyPanel = kKeys * 128;
  static constexpr uint32_t kKeyTile = kPanels * kKeyPanel;
  // A stage is two rings' slots: K and uK, at last O; V and uV, at last dO. Scores run a tile ahead of the second
  // products, so K's slots are free long before V's: one ring of both would leave the copy engine idle.
  static constexpr uint32_t kSlotBytes = 2 * kKeyTile;
  static constexpr uint32_t kStageBytes = 2 * kSlotBytes;

  static constexpr uint32_t kStagesOffset = 2 * kQueryTile;
  static constexpr uint32_t kBarriersOffset = kStagesOffset + kStages * kStageBytes;
  static constexpr uint32_t kInfoOffset = kBarriersOffset + 16 + 32 * kStages;  // a word each: what Info names
  static constexpr uint32_t kSharedBytes = kInfoOffset + 4 * (8 + kStages);
  static_assert(kSlotBytes >= kQueryTile && kSharedBytes <= 232448);

  static constexpr int kScores = kKeys / 2;
  static constexpr int kSteps = kKeys / 16;
  static constexpr int kOutputs = kHeadDim / 2;
  static constexpr int64_t kStateBytes = kStateThreads * (kOutputs + 4) * sizeof(float);

  // Words in shared memory: the CTA's number in the launch, whether it is the last of its parts, the mask, and the
  // first key of every stage. Consumers read them where they need them and keep no registers for them.
  enum Info { kNumber, kLast, kDiagonal, kDiagonals, kKeyEnd, kFirstKey = 8 };

  static constexpr uint32_t kWarpgroupBarrier = 1;  // + warpgroup
  // + warpgroup whose turn it is to queue products: one computes P and P.G while the other's products run.
  static constexpr uint32_t kTurnBarrier = 3;

  using ScoreProduct = Wgmma<T, kKeys>;
  using OutputProduct = Wgmma<T, kHeadDim>;

  __device__ static uint32_t QueriesLoaded(uint32_t shared) { return shared + kBarriersOffset; }
  // `slot` 0: K, uK; 1: V, uV.
  __device__ static uint32_t Slot(uint32_t shared, uint32_t stage, uint32_t slot) {
    return shared + kStagesOffset + stage * kStageBytes + slot * kSlotBytes;
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
      for (int map = kQ; map <= kDout; ++map) AcquireMap(maps + map);
    }
    const int32_t batch = BatchOf(args, walk.item);
    const int32_t head = walk.item.head;
    const int32_t probe = walk.item.probe;
    const uint32_t queries_loaded = QueriesLoaded(shared);
    ArriveExpectBytes(queries_loaded, 2 * kQueryTile);
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      LoadBox(shared + panel * kQueryPanel, maps + kQ, {panel * 64, walk.query0, head, batch, 0}, queries_loaded);
      LoadBox(shared + kQueryTile + panel * kQueryPanel, maps + kUq,
              {panel * 64, walk.query0, head, batch, ProbeOf(args, kUq, probe)}, queries_loaded);
    }
    const int32_t kv_head = head / args.group;
    const int32_t uk_probe = ProbeOf(args, kUk, probe);
    const int32_t uv_probe = ProbeOf(args, kUv, probe);
    RingPosition<kStages> ring;
    for (int32_t step = share.begin; step <= share.end; ++step) {
#pragma unroll
      for (uint32_t slot = 0; slot < 2; ++slot) {
        const uint32_t to = Slot(shared, ring.stage, slot);
        const uint32_t full = Full(shared, ring.stage, slot);
        Wait(Empty(shared, ring.stage, slot), ring.parity ^ 1);
        if (step < share.end) {
          const int32_t key0 = walk.Key0(step);
          if (slot == 0) StoreShared(InfoAt(shared, kFirstKey + ring.stage), static_cast<uint32_t>(key0));
          ArriveExpectBytes(full, kSlotBytes);
#pragma unroll
          for (int panel = 0; panel < kPanels; ++panel) {
            LoadBox(to + panel * kKeyPanel, maps + (slot == 0 ? kK : kV), {panel * 64, key0, kv_head, batch, 0}, full);
            LoadBox(to + kKeyTile + panel * kKeyPanel, maps + (slot == 0 ? kUk : kUv),
                    {panel * 64, key0, kv_head, batch, slot == 0 ? uk_probe : uv_probe}, full);
          }
        } else {
          ArriveExpectBytes(full, kQueryTile);
#pragma unroll
          for (int panel = 0; panel < kPanels; ++panel) {
            const int map = slot == 0 ? kO : kDout;
            LoadBox(to + panel * kQueryPanel, maps + map, {panel * 64, walk.query0, head, batch, ProbeOf(args, map, 0)},
                    full);
          }
        }
      }
      ring.Advance();
    }
  }

  struct Consumer {
    float out[kOutputs];
    float s[kScores];
    float g[kScores];
    uint32_t p[kSteps][4];
    uint32_t pg[kSteps][4];
    uint32_t q[kQueriesInRegisters ? 4 : 1][4];
    uint32_t uq[kQueriesInRegisters ? 4 : 1][4];
    float lse[2];
    float c[4] = {0, 0, 0, 0};     // two are used; a state's sums come in fours
    RingPosition<kStages> k_ring;  // of the next scores
    RingPosition<kStages> v_ring;  // of the next second products
    Operand queries;               // this warpgroup's rows of Q; those of uQ are kQueryTile further
    uint32_t shared;
    uint32_t warpgroup;
  };

  __device__ __forceinline__ static void IssueScores(Consumer& me) {
    const Operand k = Operand::Rows(Slot(me.shared, me.k_ring.stage, 0));
    Wait(Full(me.shared, me.k_ring.stage, 0), me.k_ring.parity);
    me.queries.Refresh();
    Fence();
#pragma unroll
    for (int step = 0; step < kHeadDim / 16; ++step) {
      if constexpr (kQueriesInRegisters) {
        if (step == 0) {
          ScoreProduct::template Start<0>(me.s, me.q[step], k);
        } else {
          ScoreProduct::template Multiply<0>(me.s, me.q[step], k + KeyStep(step));
        }
      } else {
        if (step == 0) {
          ScoreProduct::template Start<0, 0>(me.s, me.queries, k);
        } else {
          ScoreProduct::template Multiply<0, 0>(me.s, me.queries + QueryStep(step), k + KeyStep(step));
        }
      }
    }
    Commit();
#pragma unroll
    for (int step = 0; step < kHeadDim / 16; ++step) {
      if constexpr (kQueriesInRegisters) {
        if (step == 0) {
          ScoreProduct::template Start<0>(me.g, me.uq[step], k);
        } else {
          ScoreProduct::template Multiply<0>(me.g, me.uq[step], k + KeyStep(step));
        }
        ScoreProduct::template Multiply<0>(me.g, me.q[step], k + (kKeyTile + KeyStep(step)));
      } else {
        if (step == 0) {
          ScoreProduct::template Start<0, 0>(me.g, me.queries + kQueryTile, k);
        } else {
          ScoreProduct::template Multiply<0, 0>(me.g, me.queries + (kQueryTile + QueryStep(step)), k + KeyStep(step));
        }
        ScoreProduct::template Multiply<0, 0>(me.g, me.queries + QueryStep(step), k + (kKeyTile + KeyStep(step)));
      }
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

  // From the scores: P and P.G, rounded, and c.
  template <bool kMasked>
  __device__ __forceinline__ static void TakeScores(const MappedArgs& args, Consumer& me) {
    [[maybe_unused]] PairTest visible;
    if constexpr (kMasked) visible = PairTest(me);
    WaitFor<1>();
    Settle(me.s);
#pragma unroll
    for (int block = 0; block < kKeys / 8; ++block) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& p = me.s[4 * block + i];
        p = Exp2(fmaf(p, args.score_scale, -me.lse[i / 2]));
        if constexpr (kMasked) p = visible(i / 2, 8 * block + i % 2) ? p : 0.0f;
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int at = 4 * block + 2 * i;
        me.p[block / 2][2 * (block % 2) + i] = RoundPair<T>(me.s[at], me.s[at + 1]);
      }
    }
    WaitFor<0>();
    Settle(me.g);
    Release(me.shared, me.k_ring, 0);
#pragma unroll
    for (int block = 0; block < kKeys / 8; ++block) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int at = 4 * block + 2 * i;
        const float first = me.s[at] * args.scale * me.g[at];
        const float second = me.s[at + 1] * args.scale * me.g[at + 1];
        me.c[i] += first + second;
        me.pg[block / 2][2 * (block % 2) + i] = RoundPair<T>(first, second);
      }
    }
  }

  // The second products of the tile whose scores are taken, and the scores of the next.
  template <bool kMasked, bool kNext>
  __device__ __forceinline__ static void Step(const MappedArgs& args, Consumer& me) {
    const Operand v = Operand::Transposed(Slot(me.shared, me.v_ring.stage, 1), kKeyPanel);
    Wait(Full(me.shared, me.v_ring.stage, 1), me.v_ring.parity);
    NamedSync(kTurnBarrier + me.warpgroup, kConsumers);
    Fence();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      OutputProduct::template Multiply<1>(me.out, me.p[step], v + (kKeyTile + step * 2048));
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      OutputProduct::template Multiply<1>(me.out, me.pg[step], v + step * 2048);
    }
    Commit();
    if constexpr (kNext) IssueScores(me);
    NamedArrive(kTurnBarrier + 1 - me.warpgroup, kConsumers);
    WaitFor<kNext ? 2 : 0>();
    Release(me.shared, me.v_ring, 1);
    if constexpr (kNext) TakeScores<kMasked>(args, me);
  }

  __device__ __forceinline__ static void LoadQueries(Consumer& me) {
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t row = threadIdx.x / 32 * 16 + lane / 8 % 2 * 8 + lane % 8;
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const uint32_t at = me.shared + row * 128 + (((2 * step + lane / 16) ^ (lane % 8)) << 4);
      LoadMatrices(me.q[step], at);
      LoadMatrices(me.uq[step], at + kQueryTile);
    }
  }

  // gdO, and the row scalars of the column pass. O and dO lie in the last stage; gdO goes where O was.
  __device__ __forceinline__ static void Finish(const MappedArgs& args, Consumer& me, const RowWalk& walk) {
    constexpr int64_t kPadding = ColumnQueries(kHeadDim);  // of row scalars
    const PassArgs& pass = args.pass;
    const Item& item = walk.item;
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t row = threadIdx.x / 32 * 16 + lane / 4;
    const uint32_t o_tile = Slot(me.shared, me.k_ring.stage, 0);
    const uint32_t dout_tile = Slot(me.shared, me.v_ring.stage, 1);
    const float factor = exp2f(static_cast<float>(-pass.power_shift));
    const int64_t query_len = item.sequence.mask.query_len;
    const float* exact_o[2] = {nullptr, nullptr};  // where o was recomputed and is fp32
    float r[2] = {0, 0};
    float d[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      me.c[i] = SumOverQuad(me.c[i]) * factor;
      const int64_t query = walk.query0 + static_cast<int64_t>(row) + 8 * i;
      if (pass.o_is_accumulator && query < query_len) {
        exact_o[i] = static_cast<const float*>(pass.o.data) +
                     RowOffset(pass.o, 0, item.sequence.index, item.head, item.sequence.query_start + query);
      }
    }
#pragma unroll
    for (int block = 0; block < kHeadDim / 8; ++block) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t at =
            (block / 8) * kQueryPanel + (row + 8 * i) * 128 + (((block % 8) ^ (row % 8)) << 4) + (lane % 4) * 4;
        const int32_t column = 8 * block + 2 * static_cast<int32_t>(lane % 4);
        float2 o = ExpandPair<T>(LoadShared(o_tile + at));
        if (exact_o[i] != nullptr && column < pass.value_dim) {
          o = *reinterpret_cast<const float2*>(exact_o[i] + column);
        }
        const float2 dout = ExpandPair<T>(LoadShared(dout_tile + at));
        const float first = fmaf(me.out[4 * block + 2 * i], factor, -me.c[i] * o.x);
        const float second = fmaf(me.out[4 * block + 2 * i + 1], factor, -me.c[i] * o.y);
        r[i] += dout.x * first + dout.y * second;
        d[i] += dout.x * o.x + dout.y * o.y;
        StoreShared(o_tile + at, RoundPair<T>(first, second));
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float row_r = SumOverQuad(r[i]);
      const float row_d = SumOverQuad(d[i]);
      const int64_t query = walk.query0 + static_cast<int64_t>(row) + 8 * i;
      if (pass.write_row_scalars && query < (query_len + kPadding - 1) / kPadding * kPadding) {
        const int64_t to =
            RowOffset(pass.row_scalars, item.probe, item.sequence.index, item.head, FirstPaddedRow(pass, item) + query);
        const float value = lane % 4 == 0 ? me.lse[i] : lane % 4 == 1 ? row_d : lane % 4 == 2 ? me.c[i] : row_r;
        static_cast<float*>(pass.row_scalars.data)[to / 32 * (32 * kRowScalars) + lane % 4 * 32 + to % 32] = value;
      }
      if (pass.out_lse.data != nullptr && lane % 4 == 0 && query < query_len) {
        static_cast<float*>(pass.out_lse.data)[RowOffset(pass.out_lse, item.probe, item.sequence.index, item.head,
                                                         item.sequence.query_start + query)] = me.c[i];
      }
    }
    if (pass.out.data == nullptr) return;
    FenceForAsyncProxy();
    NamedSync(kWarpgroupBarrier + me.warpgroup, 128);
    if (threadIdx.x % 128 == 0) {
      const CUtensorMap* const map = MapsOf(args, item) + kOut;
      if (pass.sequences != nullptr) AcquireMap(map);
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
        StoreBox(map,
                 {panel * 64, walk.query0 + static_cast<int32_t>(me.warpgroup) * 64, item.head, BatchOf(args, item),
                  item.probe},
                 o_tile + panel * kQueryPanel + me.warpgroup * 64 * 128);
      }
      CommitStores();
      WaitStores();
    }
  }

  __device__ __forceinline__ static void LoadLse(const PassArgs& pass, Consumer& me, const RowWalk& walk) {
    const Item& item = walk.item;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      // Rows past the end, and those that see no key, have P = 0.
      const int64_t row = walk.query0 + static_cast<int64_t>(threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + 8 * i);
      float lse = INFINITY;
      if (row < item.sequence.mask.query_len) {
        lse = static_cast<const float*>(
            pass.lse.data)[RowOffset(pass.lse, 0, item.sequence.index, item.head, item.sequence.query_start + row)];
        lse = lse == -INFINITY ? INFINITY : lse * 1.4426950408889634f - static_cast<float>(pass.power_shift);
      }
      me.lse[i] = lse;
    }
  }

  __device__ __forceinline__ static void Consume(const MappedArgs& args, uint32_t shared, const RowWalk& first_walk,
                                                 const WalkShare& share, uint32_t warpgroup) {
    const PassArgs& pass = args.pass;
    Consumer me;
    me.shared = shared;
    me.warpgroup = warpgroup;
    me.queries = Operand::Rows(shared + warpgroup * 64 * 128);
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) me.out[i] = 0;
    LoadLse(pass, me, first_walk);
    if (share.resumes) AddState(AddState(StateOf(pass, blockIdx.x, kStateBytes), me.out), me.c);
    Wait(QueriesLoaded(shared), 0);
    if constexpr (kQueriesInRegisters) LoadQueries(me);
    const uint32_t steps = static_cast<uint32_t>(share.steps());
    const uint32_t masked = static_cast<uint32_t>(share.masked);
    if (steps > 0) {
      if (warpgroup == 1) NamedArrive(kTurnBarrier, kConsumers);
      IssueScores(me);
      TakeScores<true>(args, me);
      uint32_t number = 0;
      for (; number + 1 < masked && number + 1 < steps; ++number) Step<true, true>(args, me);
      for (; number + 1 < steps; ++number) Step<false, true>(args, me);
      Step<true, false>(args, me);
    }
    Settle(me.out);

    // Read again what the loops had no registers for.
    const int64_t number = LoadShared(InfoAt(shared, kNumber));
    const RowWalk walk(args, number, kQueries, kKeys);
    Wait(Full(me.shared, me.k_ring.stage, 0), me.k_ring.parity);
    Wait(Full(me.shared, me.v_ring.stage, 1), me.v_ring.parity);
    const bool suspends = WalkShare(pass, number, walk.steps, walk.masked_steps).suspends;
    if (suspends || pass.parts > 1) {
      SaveState(SaveState(StateOf(pass, number, kStateBytes), me.out), me.c);
      if (suspends || !LastOfParts(pass, number, InfoAt(shared, kLast))) return;
#pragma unroll
      for (int i = 0; i < kOutputs; ++i) me.out[i] = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) me.c[i] = 0;
      for (int64_t part = 0; part < pass.parts; ++part) {
        const int64_t slot = number / pass.parts * pass.parts + part;
        AddState(AddState(StateOf(pass, slot, kStateBytes), me.out), me.c);
      }
    }
    Finish(args, me, walk);
  }
};

}  // namespace flashbob::cuda::hopper

#endif  // FLASHBOB_KERNELS_CUDA_HOPPER_BOB_ROWS_CUH_
