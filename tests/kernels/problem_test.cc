// What AttentionProblem refuses, with which numbers, and what it derives from shapes.
#include "kernels/problem.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <set>
#include <string>

namespace flashbob {
namespace {

using enum TensorName;

constexpr int64_t kHuge = int64_t{1} << 62;

// q, k, v and do of a valid batched problem: 2 x 6 heads (2 kv heads), 5 x 7, head dim 4, value dim 3.
struct Draft {
  ProblemOptions options;
  DType dtype = DType::kFloat32;
  std::vector<TensorInfo> tensors = {{kQ, DType::kFloat32, {2, 6, 5, 4}},
                                     {kK, DType::kFloat32, {2, 2, 7, 4}},
                                     {kV, DType::kFloat32, {2, 2, 7, 3}},
                                     {kDo, DType::kFloat32, {2, 6, 5, 3}}};

  Shape& shape(TensorName name) {
    for (TensorInfo& tensor : tensors) {
      if (tensor.name == name) return tensor.shape;
    }
    ADD_FAILURE() << "no " << Name(name);
    return tensors.front().shape;
  }
  absl::StatusOr<AttentionProblem> Make() const { return AttentionProblem::FromShapes(options, tensors); }
};

// The same problem packed: sequences of 5 and 3 queries, 7 and 2 keys.
Draft PackedDraft() {
  Draft draft;
  draft.options.layout = Layout::kTHD;
  draft.options.cu_seqlens_q = {0, 5, 8};
  draft.options.cu_seqlens_k = {0, 7, 9};
  draft.shape(kQ) = {8, 6, 4};
  draft.shape(kK) = {9, 2, 4};
  draft.shape(kV) = {9, 2, 3};
  draft.shape(kDo) = {8, 6, 3};
  return draft;
}

struct Refusal {
  const char* name;
  std::function<void(Draft&)> spoil;
  absl::StatusCode code;
  std::vector<std::string> words;  // all of them are in the message
};

std::ostream& operator<<(std::ostream& out, const Refusal& refusal) { return out << refusal.name; }

void ExpectRefused(const absl::StatusOr<AttentionProblem>& problem, const Refusal& refusal) {
  ASSERT_FALSE(problem.ok());
  EXPECT_EQ(problem.status().code(), refusal.code) << problem.status();
  for (const std::string& word : refusal.words) {
    EXPECT_NE(std::string(problem.status().message()).find(word), std::string::npos)
        << "'" << word << "' is not in: " << problem.status();
  }
}

class BatchedRefusal : public testing::TestWithParam<Refusal> {};

TEST_P(BatchedRefusal, NamesTheNumbers) {
  Draft draft;
  ASSERT_TRUE(draft.Make().ok()) << draft.Make().status();
  GetParam().spoil(draft);
  ExpectRefused(draft.Make(), GetParam());
}

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

INSTANTIATE_TEST_SUITE_P(
    Problems, BatchedRefusal,
    testing::Values(
        Refusal{"MissingV", [](Draft& d) { d.tensors.erase(d.tensors.begin() + 2); }, kInvalid, {"v", "needed"}},
        Refusal{"NegativeExtent", [](Draft& d) { d.shape(kQ)[2] = -5; }, kInvalid, {"q", "-5"}},
        Refusal{"NegativeExtentOfAnother", [](Draft& d) { d.shape(kDo)[2] = -5; }, kInvalid, {"do", "-5"}},
        Refusal{"LengthOf2To62", [](Draft& d) { d.shape(kK)[2] = kHuge; }, kInvalid, {"k", std::to_string(kHuge)}},
        Refusal{"BatchOf2To62", [](Draft& d) { d.shape(kQ)[0] = kHuge; }, kInvalid, {"q", std::to_string(kHuge)}},
        Refusal{"HeadsOf2To62", [](Draft& d) { d.shape(kQ)[1] = kHuge; }, kInvalid, {"q", std::to_string(kHuge)}},
        Refusal{"ProductPast2To63",
                [](Draft& d) {
                  d.shape(kQ) = {int64_t{1} << 40, 2, int64_t{1} << 40, 4};
                  d.shape(kK)[0] = d.shape(kV)[0] = int64_t{1} << 40;
                },
                kInvalid,
                {"1099511627776"}},
        Refusal{"MoreBytesThanAnyTensor",
                [](Draft& d) {
                  d.shape(kQ)[2] = d.shape(kDo)[2] = int64_t{1} << 46;
                  d.shape(kQ)[3] = d.shape(kK)[3] = 256;
                },
                kInvalid,
                {"70368744177664", "bytes"}},
        Refusal{"WrongRank",
                [](Draft& d) {
                  d.shape(kQ) = {5, 4};
                },
                kInvalid,
                {"q", "2 axes", "BHND", "4"}},
        Refusal{"NoAxis", [](Draft& d) { d.shape(kV) = {}; }, kInvalid, {"v", "0 axes"}},
        Refusal{"HeadsDoNotDivide", [](Draft& d) { d.shape(kQ)[1] = 5; }, kInvalid, {"5 heads", "2"}},
        Refusal{"FewerHeadsThanKvHeads", [](Draft& d) { d.shape(kQ)[1] = 1; }, kInvalid, {"1 heads", "2"}},
        Refusal{"NoHeads", [](Draft& d) { d.shape(kQ)[1] = 0; }, kInvalid, {"0 heads"}},
        Refusal{"NoKvHeads", [](Draft& d) { d.shape(kK)[1] = 0; }, kInvalid, {"0", "heads"}},
        Refusal{"BatchesDiffer", [](Draft& d) { d.shape(kK)[0] = 3; }, kInvalid, {"k", "[3, 2, 7, 4]", "[2, 2, 7, 4]"}},
        Refusal{
            "HeadDimsDiffer", [](Draft& d) { d.shape(kK)[3] = 5; }, kInvalid, {"k", "[2, 2, 7, 5]", "[2, 2, 7, 4]"}},
        Refusal{"KvHeadsDiffer", [](Draft& d) { d.shape(kV)[1] = 3; }, kInvalid, {"v", "[2, 3, 7, 3]", "[2, 2, 7, 3]"}},
        Refusal{"KeyLengthsDiffer", [](Draft& d) { d.shape(kV)[2] = 8; }, kInvalid, {"v", "[2, 2, 8, 3]"}},
        Refusal{
            "OtherShapeWrong", [](Draft& d) { d.shape(kDo)[3] = 4; }, kInvalid, {"do", "[2, 6, 5, 4]", "[2, 6, 5, 3]"}},
        Refusal{"NoHeadDim", [](Draft& d) { d.shape(kQ)[3] = d.shape(kK)[3] = 0; }, kInvalid, {"head dim", "0"}},
        Refusal{"NoValueDim", [](Draft& d) { d.shape(kV)[3] = 0; }, kInvalid, {"value dim", "0"}},
        Refusal{"HeadDim257",
                [](Draft& d) { d.shape(kQ)[3] = d.shape(kK)[3] = 257; },
                absl::StatusCode::kUnimplemented,
                {"head dim 257", "nearest", "256"}},
        Refusal{"ValueDim257",
                [](Draft& d) { d.shape(kV)[3] = d.shape(kDo)[3] = 257; },
                absl::StatusCode::kUnimplemented,
                {"value dim 257", "nearest", "256"}},
        Refusal{
            "DtypesDiffer", [](Draft& d) { d.tensors[1].dtype = DType::kFloat64; }, kInvalid, {"k", "fp64", "fp32"}},
        Refusal{"HalfLse",
                [](Draft& d) {
                  for (TensorInfo& tensor : d.tensors) tensor.dtype = DType::kBFloat16;
                  d.tensors.push_back({kLse, DType::kBFloat16, {2, 6, 5}});
                },
                kInvalid,
                {"lse", "bf16", "fp32"}},
        Refusal{"NanScale",
                [](Draft& d) { d.options.scale = std::numeric_limits<double>::quiet_NaN(); },
                kInvalid,
                {"scale", "nan", "finite"}},
        Refusal{"InfiniteScale",
                [](Draft& d) { d.options.scale = -std::numeric_limits<double>::infinity(); },
                kInvalid,
                {"scale", "-inf", "finite"}},
        Refusal{"WindowBelowOpen", [](Draft& d) { d.options.window_left = -2; }, kInvalid, {"(-2, -1)"}},
        Refusal{"RightWindowBelowOpen", [](Draft& d) { d.options.window_right = -9; }, kInvalid, {"(-1, -9)"}},
        Refusal{"NegativeProbes", [](Draft& d) { d.options.probes = -1; }, kInvalid, {"probes", "-1"}},
        Refusal{
            "ProbesOf2To62", [](Draft& d) { d.options.probes = kHuge; }, kInvalid, {"probes", std::to_string(kHuge)}},
        Refusal{"ProbesOf2To47", [](Draft& d) { d.options.probes = int64_t{1} << 47; }, kInvalid, {"140737488355328"}},
        Refusal{"ProbeAxisMissing",
                [](Draft& d) {
                  d.options.probes = 2;
                  d.tensors.push_back({kUq, DType::kFloat32, {2, 6, 5, 4}});
                },
                kInvalid,
                {"uq", "[2, 6, 5, 4]", "[2, 2, 6, 5, 4]"}},
        Refusal{"ProbeAxisUnexpected",
                [](Draft& d) {
                  d.tensors.push_back({kUk, DType::kFloat32, {1, 2, 2, 7, 4}});
                },
                kInvalid,
                {"uk", "[1, 2, 2, 7, 4]", "[2, 2, 7, 4]"}},
        Refusal{"CuSeqlensWithoutPacking",
                [](Draft& d) {
                  d.options.cu_seqlens_q = {0, 5};
                },
                kInvalid,
                {"BHND", "THD"}}),
    [](const testing::TestParamInfo<Refusal>& info) { return info.param.name; });

class PackedRefusal : public testing::TestWithParam<Refusal> {};

TEST_P(PackedRefusal, NamesTheNumbers) {
  Draft draft = PackedDraft();
  ASSERT_TRUE(draft.Make().ok()) << draft.Make().status();
  GetParam().spoil(draft);
  ExpectRefused(draft.Make(), GetParam());
}

INSTANTIATE_TEST_SUITE_P(Problems, PackedRefusal,
                         testing::Values(Refusal{"Missing",
                                                 [](Draft& d) { d.options.cu_seqlens_k = {}; },
                                                 kInvalid,
                                                 {"cu_seqlens_k", "missing"}},
                                         Refusal{"FirstNotZero",
                                                 [](Draft& d) {
                                                   d.options.cu_seqlens_q = {1, 5, 8};
                                                 },
                                                 kInvalid,
                                                 {"cu_seqlens_q", "1"}},
                                         Refusal{"Decreases",
                                                 [](Draft& d) {
                                                   d.options.cu_seqlens_k = {0, 7, 6, 9};
                                                 },
                                                 kInvalid,
                                                 {"cu_seqlens_k decreases", "entry 1 is 7", "entry 2 is 6"}},
                                         Refusal{"Negative",
                                                 [](Draft& d) {
                                                   d.options.cu_seqlens_q = {0, -3, 8};
                                                 },
                                                 kInvalid,
                                                 {"decreases", "-3"}},
                                         Refusal{"LastNotTotal",
                                                 [](Draft& d) {
                                                   d.options.cu_seqlens_q = {0, 5, 7};
                                                 },
                                                 kInvalid,
                                                 {"cu_seqlens_q", "ends with 7", "8 rows"}},
                                         Refusal{"NumbersOfSequencesDiffer",
                                                 [](Draft& d) {
                                                   d.options.cu_seqlens_k = {0, 3, 7, 9};
                                                 },
                                                 kInvalid,
                                                 {"3 entries", "4"}},
                                         Refusal{"BatchedShapes",
                                                 [](Draft& d) {
                                                   d.shape(kQ) = {2, 6, 4, 4};
                                                 },
                                                 kInvalid,
                                                 {"q", "4 axes", "THD", "3"}},
                                         Refusal{"TotalOf2To62",
                                                 [](Draft& d) {
                                                   d.shape(kQ)[0] = kHuge;
                                                   d.options.cu_seqlens_q = {0, 5, kHuge};
                                                 },
                                                 kInvalid,
                                                 {std::to_string(kHuge)}}),
                         [](const testing::TestParamInfo<Refusal>& info) { return info.param.name; });

TEST(ProblemTest, DerivesExtentsFromBatchedShapes) {
  for (Layout layout : {Layout::kBHND, Layout::kBNHD}) {
    Draft draft;
    draft.options.layout = layout;
    if (layout == Layout::kBNHD) {
      for (TensorInfo& tensor : draft.tensors) std::swap(tensor.shape[1], tensor.shape[2]);
    }
    const absl::StatusOr<AttentionProblem> problem = draft.Make();
    ASSERT_TRUE(problem.ok()) << problem.status();
    EXPECT_EQ(problem->batch(), 2);
    EXPECT_EQ(problem->heads(), 6);
    EXPECT_EQ(problem->kv_heads(), 2);
    EXPECT_EQ(problem->group(), 3);
    EXPECT_EQ(problem->query_len(1), 5);
    EXPECT_EQ(problem->key_len(1), 7);
    EXPECT_EQ(problem->head_dim(), 4);
    EXPECT_EQ(problem->value_dim(), 3);
    EXPECT_EQ(problem->total_queries(), 10);
    EXPECT_EQ(problem->total_keys(), 14);
    EXPECT_EQ(problem->scale(), 0.5);
    EXPECT_EQ(problem->VisiblePairs(), 2 * 6 * 5 * 7);
    EXPECT_EQ(problem->ShapeOf(kLse), (Shape{2, 6, 5}));
    EXPECT_EQ(problem->ShapeOf(kTlse), (Shape{2, 6, 5}));
  }
}

TEST(ProblemTest, DerivesSequencesFromPackedShapes) {
  Draft draft = PackedDraft();
  draft.options.window_right = 0;
  draft.options.alignment = Alignment::kBottomRight;
  const absl::StatusOr<AttentionProblem> problem = draft.Make();
  ASSERT_TRUE(problem.ok()) << problem.status();
  EXPECT_EQ(problem->batch(), 2);
  EXPECT_EQ(problem->query_len(0), 5);
  EXPECT_EQ(problem->query_len(1), 3);
  EXPECT_EQ(problem->key_len(0), 7);
  EXPECT_EQ(problem->key_len(1), 2);
  EXPECT_EQ(problem->SequenceStart(kQ, 1), 5);
  EXPECT_EQ(problem->SequenceStart(kGk, 1), 7);
  EXPECT_EQ(problem->mask(0).shift, 2);
  EXPECT_EQ(problem->mask(1).shift, -1);
  EXPECT_EQ(problem->VisiblePairs(), 6 * ((3 + 4 + 5 + 6 + 7) + (0 + 1 + 2)));
  EXPECT_EQ(problem->ShapeOf(kLse), (Shape{6, 8}));
}

TEST(ProblemTest, EmptyExtentsAreValid) {
  for (int axis : {0, 2}) {
    Draft draft;
    for (TensorInfo& tensor : draft.tensors) tensor.shape[static_cast<size_t>(axis)] = 0;
    const absl::StatusOr<AttentionProblem> problem = draft.Make();
    ASSERT_TRUE(problem.ok()) << problem.status();
    EXPECT_EQ(problem->NumBytes(kQ), 0);
    EXPECT_EQ(problem->VisiblePairs(), 0);
    EXPECT_EQ(problem->ShapeOf(kDo), draft.shape(kDo));
  }
  Draft packed = PackedDraft();
  for (TensorInfo& tensor : packed.tensors) tensor.shape[0] = 0;
  packed.options.cu_seqlens_q = packed.options.cu_seqlens_k = {0};
  const absl::StatusOr<AttentionProblem> problem = packed.Make();
  ASSERT_TRUE(problem.ok()) << problem.status();
  EXPECT_EQ(problem->batch(), 0);
}

TEST(ProblemTest, WidestHeadAndWindowAreServed) {
  Draft draft;
  draft.shape(kQ)[3] = draft.shape(kK)[3] = draft.shape(kV)[3] = draft.shape(kDo)[3] = 256;
  draft.options.window_left = std::numeric_limits<int64_t>::max();
  draft.options.window_right = std::numeric_limits<int64_t>::max();
  const absl::StatusOr<AttentionProblem> problem = draft.Make();
  ASSERT_TRUE(problem.ok()) << problem.status();
  EXPECT_EQ(problem->VisiblePairs(), 2 * 6 * 5 * 7);
  EXPECT_EQ(problem->mask(0).Cover({0, 5}, {0, 7}), Coverage::kFull);
}

// Visits every index of a shape in row-major order.
void ForEachIndex(const Shape& shape, const std::function<void(const Shape&)>& visit) {
  Shape index(shape.size(), 0);
  for (int64_t extent : shape) {
    if (extent == 0) return;
  }
  while (true) {
    visit(index);
    size_t axis = shape.size();
    while (axis > 0 && ++index[axis - 1] == shape[axis - 1]) index[--axis] = 0;
    if (axis == 0) return;
  }
}

TEST(ProblemTest, StridesFindEveryElementOfEveryTensorInRowMajorOrder) {
  for (Layout layout : {Layout::kBHND, Layout::kBNHD, Layout::kTHD}) {
    for (int64_t probes : {0, 1, 3}) {
      Draft draft = layout == Layout::kTHD ? PackedDraft() : Draft();
      if (layout == Layout::kBNHD) {
        for (TensorInfo& tensor : draft.tensors) std::swap(tensor.shape[1], tensor.shape[2]);
      }
      draft.options.layout = layout;
      draft.options.probes = probes;
      const absl::StatusOr<AttentionProblem> problem = draft.Make();
      ASSERT_TRUE(problem.ok()) << problem.status();
      for (int i = 0; i < kNumTensorNames; ++i) {
        const auto name = static_cast<TensorName>(i);
        const Strides strides = problem->StridesOf(name);
        const bool has_probe = HasProbeAxis(name) && probes > 0;
        const bool rows_first = layout != Layout::kBHND && WidthOf(name) != Width::kNone;
        int64_t position = 0;
        ForEachIndex(problem->ShapeOf(name), [&](const Shape& index) {
          size_t axis = 0;
          int64_t offset = has_probe ? index[axis++] * strides.probe : 0;
          if (layout != Layout::kTHD) offset += index[axis++] * strides.batch;
          offset += index[axis++] * (rows_first ? strides.row : strides.head);
          offset += index[axis++] * (rows_first ? strides.head : strides.row);
          if (WidthOf(name) != Width::kNone) offset += index[axis++];
          ASSERT_EQ(axis, index.size());
          ASSERT_EQ(offset, position) << Name(name) << " " << Name(layout) << " at " << ToString(index);
          ++position;
        });
        EXPECT_EQ(position, problem->NumElements(name)) << Name(name) << " " << Name(layout);
      }
    }
  }
}

TEST(ProblemTest, NamesOfOptionsParseToThemselves) {
  for (Layout layout : {Layout::kBHND, Layout::kBNHD, Layout::kTHD}) EXPECT_EQ(ParseLayout(Name(layout)), layout);
  EXPECT_EQ(ParseLayout("bhnd"), std::nullopt);
  for (Alignment alignment : {Alignment::kTopLeft, Alignment::kBottomRight}) {
    EXPECT_EQ(ParseAlignment(Name(alignment)), alignment);
  }
  EXPECT_EQ(ParseAlignment("center"), std::nullopt);
}

}  // namespace
}  // namespace flashbob
