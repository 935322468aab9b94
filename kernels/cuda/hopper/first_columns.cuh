// The column pass of first-order backward on sm_90: a CTA owns 128 keys of a kv head and streams the queries that see
// them.
//
//     P  = exp(S - L)     dP = dO V^T         dS = P . (dP - D)
//     dV = P^T dO         dK = tau dS^T Q     dQ = tau dS K
//
// As bob_columns.cuh without the tangents: scores are transposed (rows are keys), so P and dS are A operands of dV and
// dK as they lie in registers; dS also goes to shared memory as [query][key], the B operand of dQ^T = K^T dS, which is
// summed over the CTA's 128 keys and leaves, one tile later, by vector reductions into an fp32 buffer in the order of
// the accumulators. Warpgroups take turns at queueing products, so that one computes P and dS while the other's run.
//
//   head dim   stages   K and V              dQ of a tile              accumulators a thread
//   64         4        in registers, 32     one warpgroup, in turn    dV 32, dK 32, S 32, dP 32, dQ 32
//   128        3        in shared memory     each warpgroup half of d  dV 64, dK 64, S 32, dP 32, then dQ 32
//
// Tiles of 64 queries. At 64 the scores of the next tile are queued behind dQ. Shared memory: K, V (128 rows each),
// stages of Q, dO and row scalars, two buffers of dS: 132 and 195 KiB. FLOP: 10 x 128 x queries x d. Bytes: 2 x 2 d in
// and 4 d added per query and block.
#ifndef FLASHBOB_KERNELS_CUDA_HOPPER_FIRST_COLUMNS_CUH_
#define FLASHBOB_KERNELS_CUDA_HOPPER_FIRST_COLUMNS_CUH_

#include "kernels/cuda/hopper/mapped_args.h"
#include "kernels/cuda/hopper/state.cuh"
#include "kernels/cuda/hopper/walk.h"
#include "kernels/cuda/tile/hopper/barrier.cuh"
#include "kernels/cuda/tile/hopper/registers.cuh"
#include "kernels/cuda/tile/hopper/tma.cuh"
#include "kernels/cuda/tile/hopper/wgmma.cuh"

namespace flashbob::cuda::hopper {

template <typename T, int kHeadDim>
struct FirstColumns {
  // The tensors, in the order of the maps.
  enum Map { kK, kV, kQ, kDout, kDk, kDv };

  // Groups of scores (S, dP) that are queued before the tile at hand is done.
  static constexpr int kAhead = kHeadDim == 64 ? 2 : 0;
  // Whether a warpgroup keeps its rows of K and V as A operands in registers, where they cost no bandwidth.
  static constexpr bool kResident = kHeadDim == 64;
  static constexpr int kKeys = 128;
  static constexpr int kQueries = kFirstColumnQueries;
  using Walk = ColumnWalk;
  static constexpr int kHeadDimension = kHeadDim;
  static constexpr int kOwned = kKeys;
  static constexpr int kStreamed = kQueries;
  static constexpr bool kTakesTickets = false;
  static constexpr int kStages = kHeadDim == 64 ? 4 : 3;
  static constexpr int kPanels = kHeadDim / 64;
  static constexpr int kThreads = 384;
  static constexpr int kConsumers = 256;
  static constexpr int kConsumerRegisters = 240;
  // At 64 a warpgroup computes all of dQ of every other tile; at 128, half of its columns of every tile.
  static constexpr bool kAlternate = kHeadDim == 64;

  static constexpr uint32_t kKeyPanel = kKeys * 128;
  static constexpr uint32_t kKeyTile = kPanels * kKeyPanel;
  static constexpr uint32_t kQueryPanel = kQueries * 128;
  static constexpr uint32_t kOutOffset = kPanels * kQueryPanel;  // of dO within a stage
  static constexpr uint32_t kScalarOffset = 2 * kOutOffset;
  static constexpr uint32_t kScalarBytes = kQueries * kRowScalars * sizeof(float);
  static constexpr uint32_t kStageBytes = kScalarOffset + kScalarBytes;
  static constexpr uint32_t kHalf = kQueries * 128;  // dS of one warpgroup's keys
  static constexpr uint32_t kBuffer = 2 * kHalf;

  static constexpr uint32_t kStagesOffset = 2 * kKeyTile;  // behind K, V
  static constexpr uint32_t kBuffersOffset = kStagesOffset + kStages * kStageBytes;
  static constexpr uint32_t kBarriersOffset = kBuffersOffset + 2 * kBuffer;
  static constexpr uint32_t kInfoOffset = kBarriersOffset + 128;  // a word each: what Info names
  static constexpr uint32_t kSharedBytes = kInfoOffset + 4 * (8 + 2 * kStages);
  static_assert(kStageBytes % 1024 == 0 && kStages <= 6 && kSharedBytes <= 232448);

  static constexpr int kScores = kQueries / 2;   // accumulators of a score tile, and of dQ^T
  static constexpr int kSteps = kQueries / 16;   // k-steps over queries
  static constexpr int kOutputs = kHeadDim / 2;  // accumulators of dV, dK
  static constexpr int kRowSteps = kResident ? kHeadDim / 16 : 1;
  static constexpr int64_t kStateBytes = kStateThreads * 2 * kOutputs * sizeof(float);

  // Words in shared memory: the CTA's number in the launch, whether it is the last of its parts, the mask, and for
  // every stage the first query and the tile's number among all sums of dQ.
  enum Info { kNumber, kLast, kDiagonal, kDiagonals, kKeyEnd, kStage = 8 };

  // Byte offsets of k-step `step` over the head dim, in a tile of keys and of queries.
  __device__ static constexpr uint32_t KeyStep(int step) { return step / 4 * kKeyPanel + step % 4 * 32; }
  __device__ static constexpr uint32_t QueryStep(int step) { return step / 4 * kQueryPanel + step % 4 * 32; }

  // Named barriers.
  static constexpr uint32_t kWarpgroupBarrier = 1;  // + warpgroup
  static constexpr uint32_t kFullBarrier = 3;       // + buffer + 2 * writing warpgroup
  static constexpr uint32_t kEmptyBarrier = 7;      // + buffer + 2 * reading warpgroup
  static constexpr uint32_t kDoneBarrier = 11;
  static constexpr uint32_t kTurnBarrier = 12;  // + warpgroup whose turn it is to queue products

  using ScoreProduct = Wgmma<T, kQueries>;
  using OutputProduct = Wgmma<T, kHeadDim>;

  __device__ static uint32_t FullStage(uint32_t shared, uint32_t stage) {
    return shared + kBarriersOffset + 16 + 8 * stage;
  }
  __device__ static uint32_t EmptyStage(uint32_t shared, uint32_t stage) {
    return shared + kBarriersOffset + 64 + 8 * stage;
  }
  __device__ static uint32_t KeysLoaded(uint32_t shared) { return shared + kBarriersOffset; }

  __device__ static uint32_t InfoAt(uint32_t shared, uint32_t word) { return shared + kInfoOffset + 4 * word; }

  __device__ static void InitBarriers(uint32_t shared) {
    InitBarrier(KeysLoaded(shared), 1);
    for (int stage = 0; stage < kStages; ++stage) {
      InitBarrier(FullStage(shared, stage), 1);
      InitBarrier(EmptyStage(shared, stage), kConsumers / 32 * kArrivalsOfWarp);
    }
  }

  __device__ static void StoreInfo(uint32_t shared, int64_t number, const ColumnWalk& walk) {
    const BandMask& mask = walk.item.sequence.mask;
    const DiagonalRange range(mask);
    StoreShared(InfoAt(shared, kNumber), static_cast<uint32_t>(number));
    StoreShared(InfoAt(shared, kDiagonal),
                static_cast<uint32_t>(walk.key0 - static_cast<int32_t>(mask.shift) - range.lowest));
    StoreShared(InfoAt(shared, kDiagonals), range.count);
    StoreShared(InfoAt(shared, kKeyEnd), static_cast<uint32_t>(mask.key_len - walk.key0));
  }

  __device__ static void Produce(const MappedArgs& args, uint32_t shared, const ColumnWalk& walk,
                                 const WalkShare& share) {
    const PassArgs& pass = args.pass;
    const Item& item = walk.item;
    const CUtensorMap* const maps = MapsOf(args, item);
    if (pass.sequences != nullptr) {
      for (int map = kK; map <= kDout; ++map) AcquireMap(maps + map);
    }
    PrefetchMap(maps + kQ);
    PrefetchMap(maps + kDout);
    const int32_t batch = BatchOf(args, item);
    const uint32_t keys_loaded = KeysLoaded(shared);
    ArriveExpectBytes(keys_loaded, 2 * kKeyTile);
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      const BoxCoordinates box = {panel * 64, walk.key0, item.head, batch, 0};
      LoadBox(shared + panel * kKeyPanel, maps + kK, box, keys_loaded);
      LoadBox(shared + kKeyTile + panel * kKeyPanel, maps + kV, box, keys_loaded);
    }
    // Of the first head of the group.
    const int32_t first_head = item.head * args.group;
    const int64_t first_row = FirstPaddedRow(pass, item);
    const int64_t first_scalar = RowOffset(pass.row_scalars, 0, item.sequence.index, first_head, first_row);
    constexpr int64_t kTile = kQueries * kHeadDim;
    const uint32_t first_tile =
        static_cast<uint32_t>(RowOffset(pass.gq_sum, 0, item.sequence.index, first_head, first_row) / kTile);
    const uint32_t tiles_of_head = static_cast<uint32_t>(pass.gq_sum.head / kTile);
    RingPosition<kStages> ring;
    for (int32_t step = share.begin; step < share.end; ++step) {
      const ColumnStep at = walk.At(step);
      const uint32_t stage = shared + kStagesOffset + ring.stage * kStageBytes;
      const uint32_t full = FullStage(shared, ring.stage);
      Wait(EmptyStage(shared, ring.stage), ring.parity ^ 1);
      const uint32_t tile = first_tile + static_cast<uint32_t>(at.head_in_group) * tiles_of_head +
                            static_cast<uint32_t>(at.query0 / kQueries);
      StoreShared(InfoAt(shared, kStage + 2 * ring.stage), static_cast<uint32_t>(at.query0));
      StoreShared(InfoAt(shared, kStage + 2 * ring.stage + 1), tile);
      ArriveExpectBytes(full, kStageBytes);
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
        const BoxCoordinates box = {panel * 64, at.query0, first_head + at.head_in_group, batch, 0};
        LoadBox(stage + panel * kQueryPanel, maps + kQ, box, full);
        LoadBox(stage + kOutOffset + panel * kQueryPanel, maps + kDout, box, full);
      }
      const int64_t row = first_scalar + at.head_in_group * pass.row_scalars.head + at.query0;
      LoadBytes(stage + kScalarOffset, static_cast<const float*>(pass.row_scalars.data) + row * kRowScalars,
                kScalarBytes, full);
      ring.Advance();
    }
  }

  // What a consumer thread keeps from tile to tile.
  struct Consumer {
    float dv[kOutputs];
    float dk[kOutputs];
    float s[kScores];
    float dp[kScores];
    uint32_t p[kSteps][4];
    uint32_t ds[kSteps][4];
    uint32_t k_rows[kRowSteps][4];
    uint32_t v_rows[kRowSteps][4];
    RingPosition<kStages> ring;
    uint32_t tile = 0;           // number of the tile at hand in the sum's buffer
    uint32_t previous_tile = 0;  // and of the one before

    uint32_t shared;
    uint32_t warpgroup;
    Operand k;               // this warpgroup's rows of K; V is kKeyTile further
    Operand k_columns;       // all 128 keys, transposed, for dQ
    uint32_t buffer_row;     // where this lane stores the first matrices of dS
    uint32_t scalar_column;  // byte offset of this lane's first column among row scalars
    float* sum;
  };

  // Whether a pair of a masked tile is visible: rows are keys, columns queries.
  struct PairTest {
    int32_t diagonal[2];  // of this lane's two rows and its column 0, above the lowest
    uint32_t count;

    PairTest() = default;
    __device__ explicit PairTest(const Consumer& me) {
      const auto info = [&](uint32_t word) { return static_cast<int32_t>(LoadShared(InfoAt(me.shared, word))); };
      const int32_t lane = static_cast<int32_t>(threadIdx.x % 32);
      const int32_t key = static_cast<int32_t>(threadIdx.x / 32 * 16) + lane / 4;
      const int32_t query = info(kStage + 2 * me.ring.stage) + 2 * (lane % 4);
      count = static_cast<uint32_t>(info(kDiagonals));
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        diagonal[i] = key + 8 * i < info(kKeyEnd) ? info(kDiagonal) + key + 8 * i - query : DiagonalRange::kNever;
      }
    }
    __device__ bool operator()(int row, int column) const {
      return static_cast<uint32_t>(diagonal[row] - column) <= count;
    }
  };

  // Two adjacent columns of row scalar `plane`, columns 8 block + 2 (lane % 4) + {0, 1}. L is plane 0; D, which is r of
  // the tangent dO, plane 3.
  __device__ static float2 Scalars(uint32_t scalars, int plane, int block) {
    float2 pair;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                 : "=f"(pair.x), "=f"(pair.y)
                 : "r"(scalars + plane * 128 + (block / 4) * 512 + (block % 4) * 32));
    return pair;
  }

  // dQ^T of the tile whose dS lies in `buffer`: all of it, or the warpgroup's 64 columns.
  __device__ static void MultiplySum(float (&dq)[kScores], Consumer& me, uint32_t buffer) {
    const Operand ds = Operand::Rows(me.shared + kBuffersOffset + buffer * kBuffer);
    me.k_columns.Refresh();
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
      const Operand a = me.k_columns + step * 2048;
      const Operand b = ds + (step / 4) * kHalf + (step % 4) * 32;
      if (step == 0) {
        ScoreProduct::template Start<1, 0>(dq, a, b);
      } else {
        ScoreProduct::template Multiply<1, 0>(dq, a, b);
      }
    }
  }

  // Eight queries a chunk. The sum lies in the tiles of the second-order pass (ColumnQueries), for bob_finish.cu.
  __device__ static void AddSum(const float (&dq)[kScores], const Consumer& me, uint32_t tile) {
    constexpr int kChunksOfTile = ColumnQueries(kHeadDim) / 8;
    float* to = me.sum + static_cast<int64_t>(tile) * (kQueries * kHeadDim);
#pragma unroll
    for (int chunk = 0; chunk < kScores / 4; ++chunk) {
      AddGlobal4(to + chunk / kChunksOfTile * (kChunksOfTile * 8 * kHeadDim) + chunk % kChunksOfTile * 512,
                 dq[4 * chunk], dq[4 * chunk + 1], dq[4 * chunk + 2], dq[4 * chunk + 3]);
    }
  }

  // The products that need nothing but the tile, a group each: 0 is S, 1 is dP.
  template <int kFirst, int kLast>
  __device__ __forceinline__ static void IssueScores(Consumer& me) {
    const uint32_t stage = me.shared + kStagesOffset + me.ring.stage * kStageBytes;
    if constexpr (kFirst <= 0 && kLast > 0) IssueScore<0>(me, me.s, me.k_rows, Operand::Rows(stage));
    if constexpr (kFirst <= 1 && kLast > 1) {
      IssueScore<kKeyTile>(me, me.dp, me.v_rows, Operand::Rows(stage + kOutOffset));
    }
  }

  template <uint32_t kOffset>
  __device__ __forceinline__ static void IssueScore(Consumer& me, float (&d)[kScores],
                                                    const uint32_t (&rows)[kRowSteps][4], Operand b) {
    me.k.Refresh();
    Fence();
#pragma unroll
    for (int step = 0; step < kHeadDim / 16; ++step) {
      if constexpr (kResident) {
        if (step == 0) {
          ScoreProduct::template Start<0>(d, rows[step], b);
        } else {
          ScoreProduct::template Multiply<0>(d, rows[step], b + QueryStep(step));
        }
      } else {
        if (step == 0) {
          ScoreProduct::template Start<0, 0>(d, me.k + kOffset, b);
        } else {
          ScoreProduct::template Multiply<0, 0>(d, me.k + (kOffset + KeyStep(step)), b + QueryStep(step));
        }
      }
    }
    Commit();
  }

  // From the scores of the stage at hand: P and dS, rounded. kMasked tests every pair.
  template <bool kMasked>
  __device__ __forceinline__ static void TakeScores(const MappedArgs& args, Consumer& me) {
    const uint32_t stage = me.shared + kStagesOffset + me.ring.stage * kStageBytes;
    const uint32_t scalars = stage + kScalarOffset + me.scalar_column;
    [[maybe_unused]] PairTest visible;
    if constexpr (kMasked) visible = PairTest(me);
    WaitFor<1>();
    Settle(me.s);
#pragma unroll
    for (int block = 0; block < kQueries / 8; ++block) {
      const float2 lse = Scalars(scalars, 0, block);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& p = me.s[4 * block + i];
        p = Exp2(fmaf(p, args.score_scale, i % 2 == 0 ? -lse.x : -lse.y));
        if constexpr (kMasked) p = visible(i / 2, 8 * block + i % 2) ? p : 0.0f;
      }
    }
    WaitFor<0>();
    Settle(me.dp);
#pragma unroll
    for (int block = 0; block < kQueries / 8; ++block) {
      const float2 d = Scalars(scalars, 3, block);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int at = 4 * block + 2 * i;
        const int to = 2 * (block % 2) + i;
        me.p[block / 2][to] = RoundPair<T>(me.s[at], me.s[at + 1]);
        me.ds[block / 2][to] = RoundPair<T>(me.s[at] * (me.dp[at] - d.x), me.s[at + 1] * (me.dp[at + 1] - d.y));
      }
    }
    me.tile = LoadShared(InfoAt(me.shared, kStage + 2 * me.ring.stage + 1));
  }

  // The rest of the tile whose scores are taken, and the scores of the next. dS goes to the buffer of the tile's lowest
  // bit. kHandOver: the other warpgroup reads it (at 128, also). kSum: this one computes dQ of the tile before. kNext:
  // there is a next tile, kMasked: of that, a masked one.
  template <bool kMasked, bool kHandOver, bool kSum, bool kNext>
  __device__ __forceinline__ static void Step(const MappedArgs& args, Consumer& me, uint32_t number) {
    const uint32_t stage = me.shared + kStagesOffset + me.ring.stage * kStageBytes;
    const uint32_t empty_stage = EmptyStage(me.shared, me.ring.stage);
    const uint32_t buffer = number & 1;
    const uint32_t tile = me.tile;
    const Operand dout_columns = Operand::Transposed(stage + kOutOffset, kQueryPanel);
    const Operand q_columns = Operand::Transposed(stage, kQueryPanel);
    NamedSync(kTurnBarrier + me.warpgroup, kConsumers);
    Fence();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      OutputProduct::template Multiply<1>(me.dv, me.p[step], dout_columns + step * 2048);
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      OutputProduct::template Multiply<1>(me.dk, me.ds[step], q_columns + step * 2048);
    }
    Commit();

    // dS of this warpgroup's keys, once whoever read this buffer two tiles ago is done with it.
    if constexpr (kAlternate) {
      if constexpr (kHandOver) NamedSync(kEmptyBarrier + buffer, kConsumers);
    } else {
      NamedSync(kEmptyBarrier + buffer + 2 * (1 - me.warpgroup), kConsumers);
    }
    const uint32_t to = me.buffer_row + buffer * kBuffer;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      StoreMatricesTransposed(to + step * 2048, me.ds[step][0], me.ds[step][1], me.ds[step][2], me.ds[step][3]);
    }
    FenceForAsyncProxy();
    if constexpr (kAlternate) {
      if constexpr (kHandOver) NamedArrive(kFullBarrier + buffer, kConsumers);
    } else {
      NamedArrive(kFullBarrier + buffer + 2 * me.warpgroup, kConsumers);
    }

    [[maybe_unused]] float dq[kScores];
    [[maybe_unused]] const uint32_t other = buffer ^ 1;
    if constexpr (kSum) {
      NamedSync(kAlternate ? kFullBarrier + other : kFullBarrier + other + 2 * (1 - me.warpgroup), kConsumers);
      Fence();
      MultiplySum(dq, me, other);
      Commit();
    }
    // All but the last group of this tile is done: its A operands make room for the next scores.
    WaitFor<1>();
    if constexpr (kSum) ArriveWarp(empty_stage);
    me.ring.Advance();
    constexpr int kLater = kNext ? kAhead : 0;
    if constexpr (kLater > 0) {
      Wait(FullStage(me.shared, me.ring.stage), me.ring.parity);
      IssueScores<0, kLater>(me);
    }
    NamedArrive(kTurnBarrier + 1 - me.warpgroup, kConsumers);
    WaitFor<kLater>();
    if constexpr (kSum) {
      Settle(dq);
      NamedArrive(kAlternate ? kEmptyBarrier + other : kEmptyBarrier + other + 2 * me.warpgroup, kConsumers);
      AddSum(dq, me, me.previous_tile);
    } else {
      ArriveWarp(empty_stage);
    }
    me.previous_tile = tile;
    if constexpr (kNext) {
      if constexpr (kAhead == 0) Wait(FullStage(me.shared, me.ring.stage), me.ring.parity);
      IssueScores<kAhead, 2>(me);
      TakeScores<kMasked>(args, me);
    }
  }

  // dQ of the last tile.
  __device__ __forceinline__ static void Drain(Consumer& me, uint32_t number) {
    const uint32_t buffer = number & 1;
    if constexpr (kAlternate) {
      NamedSync(kFullBarrier + buffer, kConsumers);
    } else {
      NamedSync(kFullBarrier + buffer + 2 * (1 - me.warpgroup), kConsumers);
    }
    float dq[kScores];
    Fence();
    MultiplySum(dq, me, buffer);
    Commit();
    WaitFor<0>();
    Settle(dq);
    AddSum(dq, me, me.previous_tile);
  }

  // Warpgroup w sums the tiles of parity w, each one tile later. Both run the same pair of steps, one tile apart.
  __device__ __forceinline__ static void WalkInTurn(const MappedArgs& args, Consumer& me, uint32_t steps,
                                                    uint32_t masked) {
    NamedArrive(kEmptyBarrier + me.warpgroup, kConsumers);
    uint32_t number = 0;
    if (me.warpgroup == 1) {
      if (steps == 1) {
        Step<true, true, false, false>(args, me, 0);
        return;
      }
      Step<true, true, false, true>(args, me, 0);
      number = 1;
    }
    for (; number + 1 < masked && number + 2 < steps; number += 2) {
      Step<true, false, false, true>(args, me, number);
      Step<true, true, true, true>(args, me, number + 1);
    }
    for (; number + 2 < steps; number += 2) {
      Step<false, false, false, true>(args, me, number);
      Step<false, true, true, true>(args, me, number + 1);
    }
    if (number + 1 < steps) {
      Step<true, false, false, true>(args, me, number);
      Step<true, true, true, false>(args, me, number + 1);
    } else if (number < steps) {
      Step<true, false, false, false>(args, me, number);
      Drain(me, number);
    }
  }

  __device__ __forceinline__ static void WalkTogether(const MappedArgs& args, Consumer& me, uint32_t steps,
                                                      uint32_t masked) {
    NamedArrive(kEmptyBarrier + 0 + 2 * me.warpgroup, kConsumers);
    NamedArrive(kEmptyBarrier + 1 + 2 * me.warpgroup, kConsumers);
    if (steps == 1) {
      Step<true, true, false, false>(args, me, 0);
    } else {
      Step<true, true, false, true>(args, me, 0);
      uint32_t number = 1;
      for (; number + 1 < masked && number + 1 < steps; ++number) Step<true, true, true, true>(args, me, number);
      for (; number + 1 < steps; ++number) Step<false, true, true, true>(args, me, number);
      Step<true, true, true, false>(args, me, number);
    }
    Drain(me, steps - 1);
  }

  // Rows of this warpgroup, rounded, into its part of a tile that nobody reads any more, and from there to the tensor.
  __device__ static void StoreOutput(const float (&output)[kOutputs], float factor, uint32_t tile, int map,
                                     const MappedArgs& args, const Consumer& me, const ColumnWalk& walk) {
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t row = me.warpgroup * 64 + (threadIdx.x / 32) % 4 * 16 + lane / 4;
#pragma unroll
    for (int block = 0; block < kHeadDim / 8; ++block) {
      const uint32_t at =
          tile + (block / 8) * kKeyPanel + row * 128 + (((block % 8) ^ (row % 8)) << 4) + (lane % 4) * 4;
      StoreShared(at, RoundPair<T>(output[4 * block] * factor, output[4 * block + 1] * factor));
      StoreShared(at + 8 * 128, RoundPair<T>(output[4 * block + 2] * factor, output[4 * block + 3] * factor));
    }
    FenceForAsyncProxy();
    NamedSync(kWarpgroupBarrier + me.warpgroup, 128);
    if (threadIdx.x % 128 == 0) {
      const CUtensorMap* const to = MapsOf(args, walk.item) + map;
      if (args.pass.sequences != nullptr) AcquireMap(to);
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
        StoreBox(to,
                 {panel * 64, walk.key0 + static_cast<int32_t>(me.warpgroup) * 64, walk.item.head,
                  BatchOf(args, walk.item), 0},
                 tile + panel * kKeyPanel + me.warpgroup * 64 * 128);
      }
      CommitStores();
    }
  }

  __device__ __forceinline__ static void Consume(const MappedArgs& args, uint32_t shared, const ColumnWalk&,
                                                 const WalkShare& share, uint32_t warpgroup) {
    const PassArgs& pass = args.pass;
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t warp = (threadIdx.x / 32) % 4;
    Consumer me;
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) me.dv[i] = me.dk[i] = 0;
    me.shared = shared;
    me.warpgroup = warpgroup;
    me.k = Operand::Rows(shared + warpgroup * 64 * 128);
    me.k_columns = Operand::Transposed(shared + (kAlternate ? 0 : warpgroup * kKeyPanel), kKeyPanel);
    const uint32_t query = lane / 16 * 8 + lane % 8;
    me.buffer_row =
        shared + kBuffersOffset + warpgroup * kHalf + query * 128 + (((warp * 2 + lane / 8 % 2) ^ (lane % 8)) << 4);
    me.scalar_column = (lane % 4) * 8;
    // A tile's accumulators lie in chunks of 512 floats, four a thread.
    me.sum = static_cast<float*>(pass.gq_sum.data) + (threadIdx.x % 128) * 4 +
             (kAlternate ? 0 : warpgroup * (ColumnQueries(kHeadDim) / 8) * 512);
    if (share.resumes) AddState(AddState(StateOf(pass, blockIdx.x, kStateBytes), me.dv), me.dk);
    Wait(KeysLoaded(shared), 0);
    if constexpr (kResident) {
      const uint32_t row = warpgroup * 64 + warp * 16 + lane / 8 % 2 * 8 + lane % 8;
#pragma unroll
      for (int step = 0; step < kHeadDim / 16; ++step) {
        const uint32_t at =
            shared + step / 4 * kKeyPanel + row * 128 + (((2 * (step % 4) + lane / 16) ^ (lane % 8)) << 4);
        LoadMatrices(me.k_rows[step], at);
        LoadMatrices(me.v_rows[step], at + kKeyTile);
      }
    }
    const uint32_t steps = static_cast<uint32_t>(share.steps());
    const uint32_t masked = static_cast<uint32_t>(share.masked);
    if (steps > 0) {
      if (warpgroup == 1) NamedArrive(kTurnBarrier, kConsumers);
      Wait(FullStage(shared, 0), 0);
      IssueScores<0, 2>(me);
      TakeScores<true>(args, me);
      if constexpr (kAlternate) {
        WalkInTurn(args, me, steps, masked);
      } else {
        WalkTogether(args, me, steps, masked);
      }
    }
    Settle(me.dv);
    Settle(me.dk);

    // Read again what the loops had no registers for.
    const int64_t number = LoadShared(InfoAt(shared, kNumber));
    const ColumnWalk walk(args, number, kKeys, kQueries);
    const bool suspends = WalkShare(pass, number, walk.steps, walk.masked_steps).suspends;
    if (suspends || pass.parts > 1) {
      SaveState(SaveState(StateOf(pass, number, kStateBytes), me.dv), me.dk);
      if (suspends || !LastOfParts(pass, number, InfoAt(shared, kLast))) return;
#pragma unroll
      for (int i = 0; i < kOutputs; ++i) me.dv[i] = me.dk[i] = 0;
      for (int64_t part = 0; part < pass.parts; ++part) {
        const int64_t slot = number / pass.parts * pass.parts + part;
        AddState(AddState(StateOf(pass, slot, kStateBytes), me.dv), me.dk);
      }
    }
    const float power = exp2f(static_cast<float>(-pass.power_shift));
    if (pass.gv.data != nullptr) StoreOutput(me.dv, power, shared + kKeyTile, kDv, args, me, walk);
    NamedSync(kDoneBarrier, kConsumers);  // the other warpgroup's dQ reads all of K
    if (pass.gk.data != nullptr) StoreOutput(me.dk, power * args.scale, shared, kDk, args, me, walk);
    if (threadIdx.x % 128 == 0) WaitStores();
  }
};

}  // namespace flashbob::cuda::hopper

#endif  // FLASHBOB_KERNELS_CUDA_HOPPER_FIRST_COLUMNS_CUH_
