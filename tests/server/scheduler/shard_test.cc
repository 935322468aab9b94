// How a computation is cut, and where a shard's bytes lie.
#include "server/scheduler/shard.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace flashbob::server {
namespace {

using enum TensorName;

struct Extents {
  int64_t batch = 1;
  int64_t heads = 1;
  int64_t kv_heads = 1;
};

// Double backward of 5 queries and 7 keys; two sequences of them where it is packed.
Computation DoubleBackward(Layout layout, const Extents& extents, int64_t probes) {
  ProblemOptions options;
  options.layout = layout;
  options.probes = probes;
  const bool packed = layout == Layout::kTHD;
  if (packed) {
    options.cu_seqlens_q = {0, 2, 5};
    options.cu_seqlens_k = {0, 3, 7};
  }
  std::vector<TensorInfo> inputs;
  for (TensorName name : {kQ, kK, kV, kO, kLse, kDo, kUq, kUk, kUv}) {
    const int64_t heads = IsQuerySide(name) ? extents.heads : extents.kv_heads;
    const int64_t length = IsQuerySide(name) ? 5 : 7;
    Shape shape;
    if (HasProbeAxis(name) && probes > 0) shape.push_back(probes);
    if (!packed) shape.push_back(extents.batch);
    const bool heads_first = layout == Layout::kBHND || name == kLse;
    shape.push_back(heads_first ? heads : length);
    shape.push_back(heads_first ? length : heads);
    if (name != kLse) shape.push_back(WidthOf(name) == Width::kHeadDim ? 3 : 2);
    inputs.push_back({name, name == kLse ? DType::kFloat32 : DType::kBFloat16, shape});
  }
  absl::StatusOr<Computation> computation = Computation::Create(Operation::kDoubleBackward, options, inputs, {});
  EXPECT_TRUE(computation.ok()) << computation.status();
  return *std::move(computation);
}

std::vector<int64_t> BytesOf(const std::vector<ByteRows>& blocks) {
  std::vector<int64_t> bytes;
  for (const ByteRows& block : blocks) {
    for (int64_t row = 0; row < block.rows; ++row) {
      for (int64_t i = 0; i < block.row_bytes; ++i) bytes.push_back(block.offset + row * block.pitch + i);
    }
  }
  return bytes;
}

// The same from the strides of both problems, element by element.
std::vector<int64_t> ExpectedBytesOf(const AttentionProblem& whole, const AttentionProblem& part, const Shard& shard,
                                     TensorName name) {
  const Strides from = whole.StridesOf(name);
  const Strides to = part.StridesOf(name);
  const int64_t bytes = static_cast<int64_t>(SizeOf(whole.DTypeOf(name)));
  const bool packed = whole.layout() == Layout::kTHD;
  const int64_t probes = HasProbeAxis(name) ? whole.probe_count() : 1;
  const int64_t group = IsQuerySide(name) ? whole.group() : 1;
  const int64_t length = IsQuerySide(name) ? 5 : 7;
  const int64_t width = WidthOf(name) == Width::kNone ? 1 : whole.ShapeOf(name).back();
  std::vector<int64_t> expected(static_cast<size_t>(part.NumBytes(name)), -1);
  for (int64_t p = 0; p < probes; ++p) {
    for (int64_t b = 0; b < (packed ? 1 : shard.batches); ++b) {
      for (int64_t h = 0; h < shard.kv_heads * group; ++h) {
        for (int64_t n = 0; n < length; ++n) {
          for (int64_t x = 0; x < width * bytes; ++x) {
            const int64_t in_part = p * to.probe + b * to.batch + h * to.head + n * to.row;
            const int64_t in_whole = p * from.probe + (shard.first_batch + b) * from.batch +
                                     (shard.first_kv_head * group + h) * from.head + n * from.row;
            expected.at(static_cast<size_t>(in_part * bytes + x)) = in_whole * bytes + x;
          }
        }
      }
    }
  }
  return expected;
}

TEST(ShardTest, EveryByteOfEveryTensorBelongsToOneShardAndLiesWhereItsOwnProblemHasIt) {
  for (Layout layout : {Layout::kBHND, Layout::kBNHD, Layout::kTHD}) {
    for (int64_t probes : {0, 1, 2}) {
      for (const Extents& extents : {Extents{2, 1, 1}, {1, 6, 3}, {3, 4, 4}, {2, 8, 2}, {5, 2, 1}}) {
        const Computation whole = DoubleBackward(layout, extents, probes);
        for (int most : {2, 3, 8}) {
          SCOPED_TRACE(whole.problem().ToString() + " over " + std::to_string(most));
          std::vector<std::vector<int64_t>> seen(kNumTensorNames);
          for (const Shard& shard : CutIntoShards(whole.problem(), most)) {
            const absl::StatusOr<Computation> part = ComputationOf(whole, shard);
            ASSERT_TRUE(part.ok()) << part.status();
            (whole.inputs() | whole.outputs()).ForEach([&](TensorName name) {
              const std::vector<int64_t> bytes = BytesOf(RowsOf(whole.problem(), shard, name));
              EXPECT_EQ(bytes, ExpectedBytesOf(whole.problem(), part->problem(), shard, name)) << Name(name);
              std::vector<int64_t>& all = seen[static_cast<size_t>(name)];
              all.insert(all.end(), bytes.begin(), bytes.end());
            });
          }
          (whole.inputs() | whole.outputs()).ForEach([&](TensorName name) {
            std::vector<int64_t>& all = seen[static_cast<size_t>(name)];
            std::sort(all.begin(), all.end());
            ASSERT_EQ(static_cast<int64_t>(all.size()), whole.problem().NumBytes(name)) << Name(name);
            for (size_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i], static_cast<int64_t>(i)) << Name(name);
          });
        }
      }
    }
  }
}

TEST(ShardTest, ShardsHaveTheWorkOfTheWholeBetweenThem) {
  for (Layout layout : {Layout::kBHND, Layout::kTHD}) {
    const Computation whole = DoubleBackward(layout, {3, 10, 5}, 2);
    double flops = 0;
    for (const Shard& shard : CutIntoShards(whole.problem(), 4)) flops += ComputationOf(whole, shard)->flops();
    EXPECT_DOUBLE_EQ(flops, whole.flops());
  }
}

std::vector<Shard> Cut(Layout layout, const Extents& extents, int most) {
  return CutIntoShards(DoubleBackward(layout, extents, 0).problem(), most);
}

TEST(ShardTest, LargestShardIsAsSmallAsCanBe) {
  EXPECT_EQ(Cut(Layout::kBHND, {1, 1, 1}, 8), (std::vector<Shard>{{0, 1, 0, 1}})) << "one head cannot be cut";
  EXPECT_EQ(Cut(Layout::kBHND, {1, 8, 1}, 8), (std::vector<Shard>{{0, 1, 0, 1}})) << "its query heads share it";
  EXPECT_EQ(Cut(Layout::kBHND, {1, 16, 16}, 2), (std::vector<Shard>{{0, 1, 0, 8}, {0, 1, 8, 8}}));
  EXPECT_EQ(Cut(Layout::kBHND, {4, 16, 16}, 2), (std::vector<Shard>{{0, 2, 0, 16}, {2, 2, 0, 16}}))
      << "along the batch a shard lies in one piece";
  EXPECT_EQ(Cut(Layout::kBHND, {3, 4, 4}, 2), (std::vector<Shard>{{0, 3, 0, 2}, {0, 3, 2, 2}}));
  EXPECT_EQ(Cut(Layout::kBHND, {2, 12, 12}, 8).size(), 8u) << "3 heads of one batch entry each";
  EXPECT_EQ(Cut(Layout::kTHD, {2, 4, 4}, 4).size(), 4u) << "sequences stay together";
  EXPECT_EQ(Cut(Layout::kTHD, {2, 4, 1}, 4).size(), 1u);
}

TEST(ShardTest, RowsAreAsFewAsCanBe) {
  const auto rows = [](Layout layout, const Extents& extents, const Shard& shard) {
    return RowsOf(DoubleBackward(layout, extents, 0).problem(), shard, kQ);  // bf16, 5 queries, head dim 3
  };
  EXPECT_EQ(rows(Layout::kBNHD, {2, 4, 4}, {0, 2, 0, 4}), (std::vector<ByteRows>{{0, 240, 1, 240}})) << "all of it";
  EXPECT_EQ(rows(Layout::kBHND, {4, 4, 4}, {1, 2, 0, 4}), (std::vector<ByteRows>{{120, 240, 1, 240}}));
  EXPECT_EQ(rows(Layout::kBHND, {2, 4, 4}, {0, 2, 1, 2}), (std::vector<ByteRows>{{30, 60, 2, 120}}));
  EXPECT_EQ(rows(Layout::kBNHD, {2, 4, 4}, {0, 2, 1, 2}), (std::vector<ByteRows>{{6, 12, 10, 24}}));
}

TEST(ShardTest, EmptyProblemsAreNotCut) {
  const std::vector<TensorInfo> inputs = {
      {kQ, DType::kFloat32, {0, 4, 5, 3}}, {kK, DType::kFloat32, {0, 4, 7, 3}}, {kV, DType::kFloat32, {0, 4, 7, 2}}};
  const Computation empty = *Computation::Create(Operation::kForward, {}, inputs, {});
  ASSERT_EQ(CutIntoShards(empty.problem(), 8).size(), 1u);
  EXPECT_TRUE(RowsOf(empty.problem(), Shard::WholeOf(empty.problem()), kQ).empty());
}

}  // namespace
}  // namespace flashbob::server
