// Which tiles the kernels for Hopper walk, and which of them they do not test against the mask: the kernels' own
// arithmetic, run on the host, without a GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "kernels/cuda/hopper/mapped_args.h"
#include "kernels/cuda/hopper/walk.h"
#include "kernels/mask.h"
#include "tests/seed.h"

namespace flashbob::cuda::hopper {
namespace {

using Random = std::mt19937_64;

int32_t Draw(Random& random, int32_t low, int32_t high) {
  return std::uniform_int_distribution<int32_t>(low, high)(random);
}

int32_t Blocks(int64_t rows, int32_t owned) { return static_cast<int32_t>((rows + owned - 1) / owned); }

// A pass as a plan gives it to the kernels, and the lengths of its sequences or batch entries.
struct Problem {
  int32_t owned;                                // rows of a block
  int32_t streamed;                             // rows of a tile
  std::vector<std::array<int32_t, 2>> lengths;  // of queries, of keys
  std::vector<SequenceInfo> sequences;
  MappedArgs args;
  int64_t items = 0;

  Problem(Random& random, Side side) : owned(1 << Draw(random, 1, 4)), streamed(1 << Draw(random, 0, 4)) {
    PassArgs& pass = args.pass;
    const bool packed = Draw(random, 0, 2) == 0;
    pass.batch = Draw(random, 1, 3);
    pass.probes = Draw(random, 1, 2);
    pass.kv_heads = Draw(random, 1, 2);
    args.group = Draw(random, 1, 3);
    pass.heads = pass.kv_heads * args.group;
    pass.bottom_right = Draw(random, 0, 1) == 1;
    pass.window_left = Draw(random, 0, 1) == 1 ? -1 : Draw(random, 0, 70);
    pass.window_right = Draw(random, 0, 1) == 1 ? -1 : Draw(random, 0, 70);
    pass.long_walks_first = Draw(random, 0, 1) == 1;
    pass.interleave = Draw(random, 1, 4);
    const std::array<int32_t, 2> uniform = {Draw(random, 1, 60), Draw(random, 1, 60)};
    for (int32_t entry = 0; entry < pass.batch; ++entry) {
      lengths.push_back(packed ? std::array{Draw(random, 0, 60), Draw(random, 0, 60)} : uniform);
    }
    SequenceInfo info{};
    for (const auto& [queries, keys] : lengths) {
      info.query_len = queries;
      info.key_len = keys;
      sequences.push_back(info);
      info.query_start += queries;
      info.key_start += keys;
      info.first_query_block += Blocks(queries, owned);
      info.first_key_block += Blocks(keys, owned);
    }
    sequences.push_back(info);
    if (packed) {
      pass.sequences = sequences.data();
      pass.query_blocks = info.first_query_block;
      pass.key_blocks = info.first_key_block;
    } else {
      std::tie(pass.query_len, pass.key_len) = std::tuple(uniform[0], uniform[1]);
      pass.query_blocks = Blocks(uniform[0], owned);
      pass.key_blocks = Blocks(uniform[1], owned);
    }
    items = side == Side::kQuery ? pass.query_blocks * AllHeads<Side::kQuery>(pass)
                                 : pass.key_blocks * AllHeads<Side::kKey>(pass);
  }
  Problem(const Problem&) = delete;

  BandMask Mask(int32_t entry) const {
    const auto [queries, keys] = lengths[entry];
    return {.query_len = queries,
            .key_len = keys,
            .left = args.pass.window_left,
            .right = args.pass.window_right,
            .shift = args.pass.bottom_right ? keys - queries : 0};
  }
};

// A tile as a CTA meets it: a rectangle of the scores of one query head.
struct Tile {
  int32_t probe;
  int32_t entry;
  int32_t head;
  IndexRange queries;
  IndexRange keys;
  bool masked;
};

Tile TileAt(const Problem& problem, const RowWalk& walk, int32_t step) {
  const int32_t key0 = walk.Key0(step);
  return {walk.item.probe,
          walk.item.sequence.index,
          walk.item.head,
          {walk.query0, walk.query0 + problem.owned},
          {key0, key0 + problem.streamed},
          step < walk.masked_steps};
}

Tile TileAt(const Problem& problem, const ColumnWalk& walk, int32_t step) {
  const ColumnStep at = walk.At(step);
  EXPECT_LT(at.head_in_group, problem.args.group);
  return {walk.item.probe,
          walk.item.sequence.index,
          walk.item.head * problem.args.group + at.head_in_group,
          {at.query0, at.query0 + problem.streamed},
          {walk.key0, walk.key0 + problem.owned},
          step < walk.masked_steps};
}

// How often each visible pair of (probe, entry, query head, query, key) is met.
class Pairs {
 public:
  explicit Pairs(const Problem& problem) : problem_(problem) {}

  void Meet(const Tile& tile) {
    const BandMask mask = problem_.Mask(tile.entry);
    for (int64_t i = tile.queries.begin; i < tile.queries.end; ++i) {
      for (int64_t j = tile.keys.begin; j < tile.keys.end; ++j) {
        // Rows past the end weigh nothing whatever a tile's kind: their row scalars, or where they are stored, see to
        // it.
        if (i >= mask.query_len) continue;
        const bool visible = j < mask.key_len && mask.Visible(i, j);
        if (!tile.masked) {
          ASSERT_TRUE(visible) << "query " << i << " and key " << j << " are in a tile that is not masked";
        }
        if (visible) ++met_[{tile.probe, tile.entry, tile.head, i, j}];
      }
    }
  }

  void ExpectEachOnce() const {
    const PassArgs& pass = problem_.args.pass;
    size_t visible = 0;
    for (int32_t entry = 0; entry < pass.batch; ++entry) {
      const BandMask mask = problem_.Mask(entry);
      for (int64_t i = 0; i < mask.query_len; ++i) visible += static_cast<size_t>(mask.KeysOf(i).size());
    }
    EXPECT_EQ(met_.size(), visible * static_cast<size_t>(pass.probes * pass.heads));
    for (const auto& [pair, times] : met_) ASSERT_EQ(times, 1) << testing::PrintToString(pair);
  }

 private:
  const Problem& problem_;
  std::map<std::tuple<int32_t, int32_t, int32_t, int64_t, int64_t>, int> met_;
};

template <typename Walk>
constexpr Side kSideOf = std::is_same_v<Walk, RowWalk> ? Side::kQuery : Side::kKey;

// Takes the steps that one CTA has of a walk.
template <typename Walk>
void Take(const Problem& problem, const Walk& walk, const WalkShare& share, Pairs& pairs) {
  for (int32_t step = share.begin; step < share.end; ++step) {
    ASSERT_EQ(step < share.begin + share.masked, step < walk.masked_steps);
    pairs.Meet(TileAt(problem, walk, step));
  }
}

template <typename Walk>
class HopperWalkTest : public testing::Test {
 protected:
  Random random_{testing_seed::Seed()};
};
using Walks = testing::Types<RowWalk, ColumnWalk>;
struct WalkNames {
  template <typename Walk>
  static std::string GetName(int) {
    return kSideOf<Walk> == Side::kQuery ? "Rows" : "Columns";
  }
};
TYPED_TEST_SUITE(HopperWalkTest, Walks, WalkNames);

TYPED_TEST(HopperWalkTest, MeetsEachVisiblePairOnceAndMasksEveryTileThatNeedsIt) {
  for (int round = 0; round < 400 && !this->HasFailure(); ++round) {
    SCOPED_TRACE(round);
    Problem problem(this->random_, kSideOf<TypeParam>);
    PassArgs& pass = problem.args.pass;
    pass.parts = Draw(this->random_, 1, 3);
    Pairs pairs(problem);
    for (int64_t number = 0; number < problem.items * pass.parts; ++number) {
      const TypeParam walk(problem.args, number, problem.owned, problem.streamed);
      Take(problem, walk, WalkShare(pass, number, walk.steps, walk.masked_steps), pairs);
    }
    pairs.ExpectEachOnce();
  }
}

TYPED_TEST(HopperWalkTest, MasksNoTileThatIsVisibleThroughout) {
  for (int round = 0; round < 400 && !this->HasFailure(); ++round) {
    SCOPED_TRACE(round);
    const Problem problem(this->random_, kSideOf<TypeParam>);
    for (int64_t number = 0; number < problem.items; ++number) {
      const TypeParam walk(problem.args, number, problem.owned, problem.streamed);
      for (int32_t step = 0; step < walk.masked_steps; ++step) {
        const Tile tile = TileAt(problem, walk, step);
        const BandMask mask = problem.Mask(tile.entry);
        const bool whole = tile.queries.end <= mask.query_len && tile.keys.end <= mask.key_len &&
                           mask.Cover(tile.queries, tile.keys) == Coverage::kFull;
        ASSERT_FALSE(whole) << "queries from " << tile.queries.begin << ", keys from " << tile.keys.begin;
      }
    }
  }
}

TYPED_TEST(HopperWalkTest, WalkCutOverLaunchesIsTakenWholeAndKnowsItsFirstAndLastPart) {
  for (int round = 0; round < 200 && !this->HasFailure(); ++round) {
    SCOPED_TRACE(round);
    Problem problem(this->random_, kSideOf<TypeParam>);
    PassArgs& pass = problem.args.pass;
    const int64_t stride = Draw(this->random_, 1, 5);
    Pairs pairs(problem);
    for (int64_t number = 0; number < problem.items; ++number) {
      const TypeParam walk(problem.args, number, problem.owned, problem.streamed);
      int shares = 0;
      int first = 0;
      int last = 0;
      for (pass.tile_begin = 0; pass.tile_begin <= walk.steps; pass.tile_begin += stride) {
        pass.tile_end = pass.tile_begin + stride;
        const WalkShare share(pass, number, walk.steps, walk.masked_steps);
        if (!share.active) continue;
        ++shares;
        first += !share.resumes;
        last += !share.suspends;
        Take(problem, walk, share, pairs);
      }
      // A block that sees nothing still has outputs to write, once.
      ASSERT_EQ(shares, std::max<int64_t>((walk.steps + stride - 1) / stride, 1));
      ASSERT_EQ(first, 1);
      ASSERT_EQ(last, 1);
    }
    pairs.ExpectEachOnce();
  }
}

// So that they do not add to the same rows of gQ at once.
TEST(ColumnWalkTest, BlocksSideBySideStartApartUnlessTheyAddInTurn) {
  MappedArgs args;
  PassArgs& pass = args.pass;
  pass.batch = pass.heads = pass.kv_heads = 1;
  pass.query_len = pass.key_len = 64;
  pass.query_blocks = pass.key_blocks = 8;
  int32_t turn = 0;
  for (int32_t number = 0; number < 8; ++number) {
    pass.turn = nullptr;
    const ColumnWalk free(args, number, 8, 8);
    EXPECT_EQ(free.masked_steps, 0);
    EXPECT_EQ(free.At(0).query0, 2 * number % 8 * 8) << number;
    pass.turn = &turn;
    EXPECT_EQ(ColumnWalk(args, number, 8, 8).At(0).query0, 0) << number;
  }
}

TEST(DiagonalRangeTest, OneComparisonTellsWhetherADiagonalIsVisible) {
  for (int64_t left : {-1, 0, 1, 7, 1 << 21}) {
    for (int64_t right : {-1, 0, 1, 7, 1 << 21}) {
      const BandMask mask{.query_len = 1 << 20, .key_len = 1 << 20, .left = left, .right = right};
      const DiagonalRange range(mask);
      for (int32_t diagonal : {-(1 << 20) + 1, -8, -7, -6, -2, -1, 0, 1, 2, 6, 7, 8, (1 << 20) - 1}) {
        EXPECT_EQ(static_cast<uint32_t>(diagonal - range.lowest) <= range.count, mask.Visible(0, diagonal))
            << diagonal << " of [" << -left << ", " << right << "]";
        // What stands for a key past the end, less any query's number.
        EXPECT_GT(static_cast<uint32_t>(DiagonalRange::kNever - std::max(diagonal, 0)), range.count);
      }
    }
  }
}

}  // namespace
}  // namespace flashbob::cuda::hopper
