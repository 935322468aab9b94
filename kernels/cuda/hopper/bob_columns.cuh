// The column pass of BoB, and of the JVP without tdo, on sm_90: a CTA owns 128 keys of a kv head and streams the
// queries that see them.
//
//     P  = exp(S - L)            G = tau (uQ K^T + Q uK^T)      dP = dO V^T      H = dO uV^T
//     X  = P . (G - c)           Z = P . (dP - D)               Y  = P . ((G - c) . (dP - D) + H - r)
//     gV = X^T dO                gK = tau (Y^T Q + Z^T uQ)      gQ = tau (Y K + Z uK)
//
// 384 threads: a producer warp (copy engine) and two consumer warpgroups of 64 keys each. Scores are transposed (rows
// are keys), so X, Y and Z are A operands of gV and gK as they lie in registers. Y and Z also go to shared memory as
// [query][key], the B operand of gQ^T = K^T Y + uK^T Z, which is summed over the CTA's 128 keys and leaves, one tile
// later, by vector reductions into an fp32 buffer in the order of the accumulators.
//
//   head dim   query tile   stages   gQ of a tile                 accumulators a thread
//   64         64           3        one warpgroup, in turn       gV 32, gK 32, scores 3 x 32, then gQ and S, G ahead
//   128        32           2        each warpgroup half of d     gV 64, gK 64, scores 5 x 16, then gQ, scores ahead
//
// H has no accumulators of its own: it is added onto (G - c) . (dP - D) - r. The scores of the next tile are queued
// behind gQ.
//
// kOrdered: key blocks add to a tile of gQ one after the other (turn.cuh's order), each warp for itself. A warp passes
// its turn when it comes to its next tile: its reductions are done by then, and the fence costs little.
//
// Shared memory: K, uK, V, uV (128 rows each), stages of Q, uQ, dO and row scalars, two buffers of Y and Z: 204 and
// 211 KiB. FLOP: 20 x 128 x queries x d. Bytes: 3 x 2 d in and 4 d added per query and block.
#ifndef FLASHBOB_KERNELS_CUDA_HOPPER_BOB_COLUMNS_CUH_
#define FLASHBOB_KERNELS_CUDA_HOPPER_BOB_COLUMNS_CUH_

#include <cuda/atomic>

#include "kernels/cuda/hopper/bob_columns_producer.cuh"
#include "kernels/cuda/hopper/kernels.h"
#include "kernels/cuda/hopper/mapped_args.h"
#include "kernels/cuda/hopper/state.cuh"
#include "kernels/cuda/hopper/walk.h"
#include "kernels/cuda/tile/hopper/barrier.cuh"
#include "kernels/cuda/tile/hopper/registers.cuh"
#include "kernels/cuda/tile/hopper/tma.cuh"
#include "kernels/cuda/tile/hopper/wgmma.cuh"

namespace flashbob::cuda::hopper {

template <typename T, int kHeadDim, bool kOrdered>
struct BobColumns {
  // The tensors, in the order of the maps.
  enum Map { kK, kUk, kV, kUv, kQ, kUq, kDout, kGk, kGv };

  // Groups of scores (S, G, dP) that are queued before the tile at hand is done.
  static constexpr int kAhead = (kHeadDim == 64 ? 2 : 3) - (kOrdered ? 1 : 0);
  // Which of K, uK, V, uV (bits 0-3) a warpgroup keeps as A operands in registers, where they cost no bandwidth.
  static constexpr int kResident = kHeadDim == 64 ? 1 : 0;
  static constexpr int kHeadDimension = kHeadDim;
  static constexpr bool kOrderedAdds = kOrdered;
  static constexpr int kKeys = 128;
  static constexpr int kQueries = ColumnQueries(kHeadDim);
  using Walk = ColumnWalk;
  static constexpr int kOwned = kKeys;
  static constexpr int kStreamed = kQueries;
  static constexpr bool kTakesTickets = true;
  static constexpr int kStages = kHeadDim == 64 ? 3 : 2;
  static constexpr int kPanels = kHeadDim / 64;
  static constexpr int kThreads = 384;
  static constexpr int kConsumers = 256;
  static constexpr int kConsumerRegisters = 240;
  // At 64 a warpgroup computes all of gQ of every other tile; at 128, half of its columns of every tile.
  static constexpr bool kAlternate = kHeadDim == 64;
  // At 128, K Q^T and K uQ^T are one product of twice the columns: products of 32 columns are bound by shared memory.
  static constexpr bool kJoined = kHeadDim == 128;

  static constexpr uint32_t kKeyPanel = kKeys * 128;
  static constexpr uint32_t kKeyTile = kPanels * kKeyPanel;
  // Q and uQ of a panel lie one after the other: 2 kQueries rows that are one B operand.
  static constexpr uint32_t kQueryBox = kQueries * 128;
  static constexpr uint32_t kQueryPanel = 2 * kQueryBox;
  static constexpr uint32_t kOutOffset = kPanels * kQueryPanel;  // of dO within a stage
  static constexpr uint32_t kScalarOffset = kOutOffset + kPanels * kQueryBox;
  static constexpr uint32_t kScalarBytes = kQueries * kRowScalars * sizeof(float);
  static constexpr uint32_t kLoadedBytes = kScalarOffset + kScalarBytes;
  static constexpr uint32_t kStageBytes = kScalarOffset + 1024;
  static constexpr uint32_t kHalf = kQueries * 128;  // Y or Z of one warpgroup's keys
  static constexpr uint32_t kBuffer = 4 * kHalf;     // Y of both, Z of both

  static constexpr uint32_t kKeysOffset = 0;  // K, uK, V, uV
  static constexpr uint32_t kStagesOffset = 4 * kKeyTile;
  static constexpr uint32_t kBuffersOffset = kStagesOffset + kStages * kStageBytes;
  static constexpr uint32_t kBarriersOffset = kBuffersOffset + 2 * kBuffer;
  static constexpr uint32_t kInfoOffset = kBarriersOffset + 128;  // a word each: what Info names
  static constexpr uint32_t kSharedBytes = kInfoOffset + 4 * (16 + 2 * kStages);
  static_assert(kScalarBytes <= 1024 && kSharedBytes + 1024 <= 232448);

  static constexpr int kScores = kQueries / 2;   // accumulators of a score tile, and of gQ^T
  static constexpr int kSteps = kQueries / 16;   // k-steps over queries
  static constexpr int kOutputs = kHeadDim / 2;  // accumulators of gV, gK
  static constexpr int64_t kStateBytes = kStateThreads * 2 * kOutputs * sizeof(float);

  // Words in shared memory: the CTA's number in the launch, whether it is the last of its parts, the mask, the block of
  // keys, for every warp the tile at which it has not passed its turn, for every stage the first query and the tile's
  // number among all sums of gQ. Consumers read them where
  // they need them and keep no registers for them.
  enum Info { kNumber, kLast, kDiagonal, kDiagonals, kKeyEnd, kBlock, kUnpassed = 8, kStage = 16 };
  // In a tile's number: the block of keys before this one adds to it too.
  static constexpr uint32_t kAwait = 1u << 31;
  static constexpr uint32_t kNoTile = UINT32_MAX;

  // Byte offsets of k-step `step` over the head dim, in a tile of keys, of Q and of dO.
  __device__ static constexpr uint32_t KeyStep(int step) { return step / 4 * kKeyPanel + step % 4 * 32; }
  __device__ static constexpr uint32_t QueryStep(int step) { return step / 4 * kQueryPanel + step % 4 * 32; }
  __device__ static constexpr uint32_t OutStep(int step) { return step / 4 * kQueryBox + step % 4 * 32; }

  __device__ static constexpr bool IsResident(int tensor) { return kResident >> tensor & 1; }
  __device__ static constexpr int ResidentBefore(int tensor) {
    int count = 0;
    for (int i = 0; i < tensor; ++i) count += kResident >> i & 1;
    return count;
  }

  // Named barriers.
  static constexpr uint32_t kWarpgroupBarrier = 1;  // + warpgroup
  static constexpr uint32_t kFullBarrier = 3;       // + buffer + 2 * writing warpgroup
  static constexpr uint32_t kEmptyBarrier = 7;      // + buffer + 2 * reading warpgroup

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
    StoreShared(InfoAt(shared, kBlock), static_cast<uint32_t>(walk.item.block));
    for (uint32_t warp = 0; warp < kConsumers / 32; ++warp) StoreShared(InfoAt(shared, kUnpassed + warp), kNoTile);
  }

  __device__ static void Produce(const MappedArgs& args, uint32_t shared, const ColumnWalk& walk,
                                 const WalkShare& share) {
    ProduceColumns<BobColumns>(args, shared, walk, share);
  }

  // A product of 64 x kQueries, from nothing where it is the first.
  template <int kTransposeA>
  __device__ __forceinline__ static void Score(float (&d)[kScores], Operand a, Operand b, bool first) {
    if (first) {
      Wgmma<T, kQueries>::template Start<kTransposeA, 0>(d, a, b);
    } else {
      Wgmma<T, kQueries>::template Multiply<kTransposeA, 0>(d, a, b);
    }
  }

  // What a consumer thread keeps from tile to tile.
  struct Consumer {
    float gv[kOutputs];
    float gk[kOutputs];
    float s[kJoined ? 2 * kScores : kScores];
    float g[kScores];
    float dp[kScores];
    uint32_t x[kSteps][4];
    uint32_t z[kSteps][4];
    uint32_t resident[kResident == 0 ? 1 : ResidentBefore(4)][kHeadDim / 16][4];
    RingPosition<kStages> ring;
    uint32_t tile = 0;           // number of the tile at hand in the sum's buffer
    uint32_t previous_tile = 0;  // and of the one before

    uint32_t shared;
    uint32_t warpgroup;
    Operand k;               // this warpgroup's rows of K; uK, V and uV are kKeyTile further each
    Operand k_columns;       // all 128 keys, transposed, for gQ; uK further by kKeyTile
    uint32_t buffer_row;     // where this lane stores the first matrices of Y
    uint32_t scalar_column;  // byte offset of this lane's first column among row scalars
    float* sum;
  };

  // The product of k-step `step` of this warpgroup's rows of K, uK, V or uV (kTensor 0-3) with b.
  template <int kTensor>
  __device__ __forceinline__ static void KeyScore(float (&d)[kScores], const Consumer& me, int step, Operand b,
                                                  bool first) {
    if constexpr (IsResident(kTensor)) {
      const auto& a = me.resident[ResidentBefore(kTensor)][step];
      if (first) {
        Wgmma<T, kQueries>::template Start<0>(d, a, b);
      } else {
        Wgmma<T, kQueries>::template Multiply<0>(d, a, b);
      }
    } else {
      Score<0>(d, me.k + (kTensor * kKeyTile + KeyStep(step)), b, first);
    }
  }

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

  // Two adjacent columns of row scalar `plane` (L, D, c, r), columns 8 block + 2 (lane % 4) + {0, 1}.
  __device__ static float2 Scalars(uint32_t scalars, int plane, int block) {
    float2 pair;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                 : "=f"(pair.x), "=f"(pair.y)
                 : "r"(scalars + plane * 128 + (block / 4) * 512 + (block % 4) * 32));
    return pair;
  }

  // gQ^T of the tile whose Y and Z lie in `buffer`: all of it, or the warpgroup's 64 columns.
  __device__ static void MultiplySum(float (&gq)[kScores], Consumer& me, uint32_t buffer) {
    const Operand y = Operand::Rows(me.shared + kBuffersOffset + buffer * kBuffer);
    me.k_columns.Refresh();
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
      Score<1>(gq, me.k_columns + step * 2048, y + (step / 4) * kHalf + (step % 4) * 32, step == 0);
    }
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
      Score<1>(gq, me.k_columns + (kKeyTile + step * 2048), y + (2 * kHalf + (step / 4) * kHalf + (step % 4) * 32),
               false);
    }
  }

  // This warp's turn at `tile`.
  __device__ static int32_t* TurnOf(const PassArgs& pass, const Consumer& me, uint32_t tile) {
    return pass.turn + static_cast<int64_t>(tile) * kTurnsOfTile + (kAlternate ? 0 : 4 * me.warpgroup) +
           threadIdx.x / 32 % 4;
  }

  // Passes this warp's turn at the tile that it added to before, if there is one, and remembers `tile`. One lane.
  __device__ static void PassTurn(const PassArgs& pass, const Consumer& me, uint32_t tile) {
    const uint32_t slot = InfoAt(me.shared, kUnpassed + threadIdx.x / 32);
    const uint32_t before = LoadShared(slot);
    StoreShared(slot, tile);
    if (before == kNoTile) return;
    ::cuda::atomic_ref<int32_t, ::cuda::thread_scope_device> turn(*TurnOf(pass, me, before));
    turn.store(static_cast<int32_t>(LoadShared(InfoAt(me.shared, kBlock))) + 1, ::cuda::memory_order_release);
  }

  // Waits for this warp's turn at `tile`. One lane.
  __device__ static void AwaitTurn(const PassArgs& pass, const Consumer& me, uint32_t tile) {
    const int32_t block = static_cast<int32_t>(LoadShared(InfoAt(me.shared, kBlock)));
    ::cuda::atomic_ref<int32_t, ::cuda::thread_scope_device> turn(*TurnOf(pass, me, tile));
    while (turn.load(::cuda::memory_order_acquire) < block) {
    }
  }

  __device__ static void AddSum(const PassArgs& pass, const float (&gq)[kScores], Consumer& me, uint32_t tile) {
    if constexpr (kOrdered) {
      if (threadIdx.x % 32 == 0) {
        PassTurn(pass, me, tile & ~kAwait);
        if ((tile & kAwait) != 0) AwaitTurn(pass, me, tile & ~kAwait);
      }
      __syncwarp();
      tile &= ~kAwait;
    }
    float* to = me.sum + static_cast<int64_t>(tile) * (kQueries * kHeadDim);
#pragma unroll
    for (int chunk = 0; chunk < kScores / 4; ++chunk) {
      AddGlobal4(to + chunk * 512, gq[4 * chunk], gq[4 * chunk + 1], gq[4 * chunk + 2], gq[4 * chunk + 3]);
    }
    if constexpr (kOrdered) __syncwarp();
  }

  // The products that need nothing but the tile, a group each: 0 is S (joined: with K uQ^T behind it), 1 is G, 2 is dP.
  template <int kFirst, int kLast>
  __device__ __forceinline__ static void IssueScores(Consumer& me) {
    if constexpr (kFirst < kLast) {
      Fence();
      IssueScore<kFirst>(me);
      Commit();
      IssueScores<kFirst + 1, kLast>(me);
    }
  }

  template <int kGroup>
  __device__ __forceinline__ static void IssueScore(Consumer& me) {
    const uint32_t stage = me.shared + kStagesOffset + me.ring.stage * kStageBytes;
    const Operand q = Operand::Rows(stage);
    const Operand dout = Operand::Rows(stage + kOutOffset);
    me.k.Refresh();
#pragma unroll
    for (int step = 0; step < kHeadDim / 16; ++step) {
      if constexpr (kGroup == 0) {
        if constexpr (kJoined) {
          using Product = Wgmma<T, 2 * kQueries>;
          if (step == 0) {
            Product::template Start<0, 0>(me.s, me.k, q);
          } else {
            Product::template Multiply<0, 0>(me.s, me.k + KeyStep(step), q + QueryStep(step));
          }
        } else {
          KeyScore<0>(me.s, me, step, q + QueryStep(step), step == 0);
        }
      } else if constexpr (kGroup == 1) {
        if constexpr (!kJoined) KeyScore<0>(me.g, me, step, q + (QueryStep(step) + kQueryBox), step == 0);
        KeyScore<1>(me.g, me, step, q + QueryStep(step), kJoined && step == 0);
      } else {
        KeyScore<2>(me.dp, me, step, dout + OutStep(step), step == 0);
      }
    }
  }

  // From the scores of the stage at hand: P, X, Z and what of Y's second factor needs no H. kMasked tests every pair.
  template <bool kMasked>
  __device__ __forceinline__ static void TakeScores(const MappedArgs& args, Consumer& me) {
    const uint32_t scalars = me.shared + kStagesOffset + me.ring.stage * kStageBytes + kScalarOffset + me.scalar_column;
    [[maybe_unused]] PairTest visible;
    if constexpr (kMasked) visible = PairTest(me);
    WaitFor<2>();
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
    WaitFor<1>();
    Settle(me.g);
#pragma unroll
    for (int block = 0; block < kQueries / 8; ++block) {
      const float2 c = Scalars(scalars, 2, block);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int at = 4 * block + 2 * i;
        if constexpr (kJoined) {
          me.g[at] += me.s[kScores + at];
          me.g[at + 1] += me.s[kScores + at + 1];
        }
        me.g[at] = fmaf(me.g[at], args.scale, -c.x);
        me.g[at + 1] = fmaf(me.g[at + 1], args.scale, -c.y);
        me.x[block / 2][2 * (block % 2) + i] = RoundPair<T>(me.s[at] * me.g[at], me.s[at + 1] * me.g[at + 1]);
      }
    }
    WaitFor<0>();
    Settle(me.dp);
#pragma unroll
    for (int block = 0; block < kQueries / 8; ++block) {
      const float2 d = Scalars(scalars, 1, block);
      const float2 r = Scalars(scalars, 3, block);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int at = 4 * block + 2 * i;
        const float dp0 = me.dp[at] - d.x;
        const float dp1 = me.dp[at + 1] - d.y;
        me.z[block / 2][2 * (block % 2) + i] = RoundPair<T>(me.s[at] * dp0, me.s[at + 1] * dp1);
        // H accumulates on top of this.
        me.g[at] = fmaf(me.g[at], dp0, -r.x);
        me.g[at + 1] = fmaf(me.g[at + 1], dp1, -r.y);
      }
    }
    me.tile = LoadShared(InfoAt(me.shared, kStage + 2 * me.ring.stage + 1));
  }

  // The rest of the tile whose scores are taken, and the scores of the next. Y and Z go to the buffer of the tile's
  // lowest bit. kHandOver: the other warpgroup reads them (at 128, also). kSum: this one computes gQ of the tile
  // before. kNext: there is a next tile, kMasked: of that, a masked one.
  template <bool kMasked, bool kHandOver, bool kSum, bool kNext>
  __device__ __forceinline__ static void Step(const MappedArgs& args, Consumer& me, uint32_t number) {
    const uint32_t stage = me.shared + kStagesOffset + me.ring.stage * kStageBytes;
    const uint32_t empty_stage = EmptyStage(me.shared, me.ring.stage);
    const uint32_t buffer = number & 1;
    const uint32_t tile = me.tile;
    const Operand dout = Operand::Rows(stage + kOutOffset);
    const Operand dout_columns = Operand::Transposed(stage + kOutOffset, kQueryBox);
    const Operand q_columns = Operand::Transposed(stage, kQueryPanel);
    Settle(me.g);
    me.k.Refresh();
    Fence();
#pragma unroll
    for (int step = 0; step < kHeadDim / 16; ++step) {
      KeyScore<3>(me.g, me, step, dout + OutStep(step), false);
    }
    Commit();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      OutputProduct::template Multiply<1>(me.gv, me.x[step], dout_columns + step * 2048);
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      OutputProduct::template Multiply<1>(me.gk, me.z[step], q_columns + (kQueryBox + step * 2048));
    }
    Commit();

    // Y and Z of this warpgroup's keys, once whoever read this buffer two tiles ago is done with it.
    if constexpr (kAlternate) {
      if constexpr (kHandOver) NamedSync(kEmptyBarrier + buffer, kConsumers);
    } else {
      NamedSync(kEmptyBarrier + buffer + 2 * (1 - me.warpgroup), kConsumers);
    }
    const uint32_t to = me.buffer_row + buffer * kBuffer;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      StoreMatricesTransposed(to + 2 * kHalf + step * 2048, me.z[step][0], me.z[step][1], me.z[step][2], me.z[step][3]);
    }
    WaitFor<1>();
    Settle(me.g);
    uint32_t y[kSteps][4];
#pragma unroll
    for (int block = 0; block < kQueries / 8; ++block) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int at = 4 * block + 2 * i;
        y[block / 2][2 * (block % 2) + i] = RoundPair<T>(me.s[at] * me.g[at], me.s[at + 1] * me.g[at + 1]);
      }
    }
    Fence();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      OutputProduct::template Multiply<1>(me.gk, y[step], q_columns + step * 2048);
    }
    Commit();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      StoreMatricesTransposed(to + step * 2048, y[step][0], y[step][1], y[step][2], y[step][3]);
    }
    FenceForAsyncProxy();
    if constexpr (kAlternate) {
      if constexpr (kHandOver) NamedArrive(kFullBarrier + buffer, kConsumers);
    } else {
      NamedArrive(kFullBarrier + buffer + 2 * me.warpgroup, kConsumers);
    }

    [[maybe_unused]] float gq[kScores];
    [[maybe_unused]] const uint32_t other = buffer ^ 1;
    if constexpr (kSum) {
      NamedSync(kAlternate ? kFullBarrier + other : kFullBarrier + other + 2 * (1 - me.warpgroup), kConsumers);
      Fence();
      MultiplySum(gq, me, other);
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
    WaitFor<kLater>();
    if constexpr (kSum) {
      Settle(gq);
      NamedArrive(kAlternate ? kEmptyBarrier + other : kEmptyBarrier + other + 2 * me.warpgroup, kConsumers);
      AddSum(args.pass, gq, me, me.previous_tile);
    } else {
      ArriveWarp(empty_stage);
    }
    me.previous_tile = tile;
    if constexpr (kNext) {
      if constexpr (kAhead == 0) Wait(FullStage(me.shared, me.ring.stage), me.ring.parity);
      IssueScores<kAhead, 3>(me);
      TakeScores<kMasked>(args, me);
    }
  }

  // gQ of the last tile.
  __device__ __forceinline__ static void Drain(const MappedArgs& args, Consumer& me, uint32_t number) {
    const uint32_t buffer = number & 1;
    if constexpr (kAlternate) {
      NamedSync(kFullBarrier + buffer, kConsumers);
    } else {
      NamedSync(kFullBarrier + buffer + 2 * (1 - me.warpgroup), kConsumers);
    }
    float gq[kScores];
    Fence();
    MultiplySum(gq, me, buffer);
    Commit();
    WaitFor<0>();
    Settle(gq);
    AddSum(args.pass, gq, me, me.previous_tile);
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
      Drain(args, me, number);
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
    Drain(args, me, steps - 1);
  }

  // Rows of this warpgroup, rounded, into its part of a tile that only it has read, and from there to the tensor.
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
                  BatchOf(args, walk.item), walk.item.probe},
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
    for (int i = 0; i < kOutputs; ++i) me.gv[i] = me.gk[i] = 0;
    me.shared = shared;
    me.warpgroup = warpgroup;
    const uint32_t rows = shared + kKeysOffset + warpgroup * 64 * 128;
    me.k = Operand::Rows(rows);
    const uint32_t columns = shared + kKeysOffset + (kAlternate ? 0 : warpgroup * kKeyPanel);
    me.k_columns = Operand::Transposed(columns, kKeyPanel);
    const uint32_t query = lane / 16 * 8 + lane % 8;
    me.buffer_row =
        shared + kBuffersOffset + warpgroup * kHalf + query * 128 + (((warp * 2 + lane / 8 % 2) ^ (lane % 8)) << 4);
    me.scalar_column = (lane % 4) * 8;
    // A tile's accumulators lie in chunks of 512 floats, four a thread.
    me.sum = static_cast<float*>(pass.gq_sum.data) + (threadIdx.x % 128) * 4 +
             (kAlternate ? 0 : warpgroup * (kScores / 4) * 512);
    if (share.resumes) {
      AddState(AddState(StateOf(pass, LoadShared(InfoAt(shared, kNumber)), kStateBytes), me.gv), me.gk);
    }
    Wait(KeysLoaded(shared), 0);
#pragma unroll
    for (int tensor = 0; tensor < 4; ++tensor) {
      if (!IsResident(tensor)) continue;
      const uint32_t row = warpgroup * 64 + warp * 16 + lane / 8 % 2 * 8 + lane % 8;
#pragma unroll
      for (int step = 0; step < kHeadDim / 16; ++step) {
        LoadMatrices(me.resident[ResidentBefore(tensor)][step], shared + kKeysOffset + tensor * kKeyTile +
                                                                    step / 4 * kKeyPanel + row * 128 +
                                                                    (((2 * (step % 4) + lane / 16) ^ (lane % 8)) << 4));
      }
    }
    const uint32_t steps = static_cast<uint32_t>(share.steps());
    const uint32_t masked = static_cast<uint32_t>(share.masked);
    if (steps > 0) {
      Wait(FullStage(shared, 0), 0);
      IssueScores<0, 3>(me);
      TakeScores<true>(args, me);
      if constexpr (kAlternate) {
        WalkInTurn(args, me, steps, masked);
      } else {
        WalkTogether(args, me, steps, masked);
      }
      if (kOrdered && threadIdx.x % 32 == 0) PassTurn(pass, me, kNoTile);
    }
    Settle(me.gv);
    Settle(me.gk);

    // Read again what the loops had no registers for.
    const int64_t number = LoadShared(InfoAt(shared, kNumber));
    const ColumnWalk walk(args, number, kKeys, kQueries);
    const bool suspends = WalkShare(pass, number, walk.steps, walk.masked_steps).suspends;
    if (suspends || pass.parts > 1) {
      SaveState(SaveState(StateOf(pass, number, kStateBytes), me.gv), me.gk);
      if (suspends || !LastOfParts(pass, number, InfoAt(shared, kLast))) return;
#pragma unroll
      for (int i = 0; i < kOutputs; ++i) me.gv[i] = me.gk[i] = 0;
      for (int64_t part = 0; part < pass.parts; ++part) {
        const int64_t slot = number / pass.parts * pass.parts + part;
        AddState(AddState(StateOf(pass, slot, kStateBytes), me.gv), me.gk);
      }
    }
    const float power = exp2f(static_cast<float>(-pass.power_shift));
    const uint32_t v_tile = shared + kKeysOffset + 2 * kKeyTile;
    if (pass.gv.data != nullptr) StoreOutput(me.gv, power, v_tile, kGv, args, me, walk);
    if (pass.gk.data != nullptr) StoreOutput(me.gk, power * args.scale, v_tile + kKeyTile, kGk, args, me, walk);
    if (threadIdx.x % 128 == 0) WaitStores();
  }
};

}  // namespace flashbob::cuda::hopper

#endif  // FLASHBOB_KERNELS_CUDA_HOPPER_BOB_COLUMNS_CUH_
