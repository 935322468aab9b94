#include "kernels/conformance/cases.h"

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace flashbob::conformance {
namespace {

using enum TensorName;

// An operation with the optional inputs that make it whole.
struct Variant {
  Operation operation;
  TensorSet optional_inputs;
};

const Variant kVariants[] = {
    {Operation::kForward, {}},
    {Operation::kBackward, {}},
    {Operation::kDoubleBackward, {kUq, kUk, kUv}},
    {Operation::kJvp, {kTq, kTk, kTv}},
    {Operation::kJvp, {kTq, kTk, kTv, kDo, kTdo}},
};

struct MaskKind {
  const char* name;
  int64_t left;
  int64_t right;
  Alignment alignment;
  bool packed;
};

constexpr MaskKind kMaskKinds[] = {
    {"full", -1, -1, Alignment::kTopLeft, false},
    {"causal-top-left", -1, 0, Alignment::kTopLeft, false},
    {"causal-bottom-right", -1, 0, Alignment::kBottomRight, false},
    {"window", 9, 5, Alignment::kTopLeft, false},
    {"window-left", 17, -1, Alignment::kBottomRight, false},
    {"window-right", -1, 12, Alignment::kTopLeft, false},
    {"packed", -1, -1, Alignment::kTopLeft, true},
    {"packed-causal", -1, 0, Alignment::kBottomRight, true},
    {"packed-window", 6, 3, Alignment::kBottomRight, true},
};
constexpr const MaskKind& kFull = kMaskKinds[0];
constexpr const MaskKind& kCausal = kMaskKinds[1];
constexpr const MaskKind& kCausalBottomRight = kMaskKinds[2];
constexpr const MaskKind& kWindow = kMaskKinds[3];
constexpr const MaskKind& kPacked = kMaskKinds[6];

void SetMask(CaseSpec& spec, const MaskKind& kind) {
  spec.mask = kind.name;
  spec.options.window_left = kind.left;
  spec.options.window_right = kind.right;
  spec.options.alignment = kind.alignment;
}

// Lengths of packed sequences, as starts.
std::vector<int64_t> Starts(const std::vector<int64_t>& lengths) {
  std::vector<int64_t> starts = {0};
  for (int64_t length : lengths) starts.push_back(starts.back() + length);
  return starts;
}

void Pack(CaseSpec& spec, const std::vector<int64_t>& query_lengths, const std::vector<int64_t>& key_lengths) {
  spec.options.layout = Layout::kTHD;
  spec.options.cu_seqlens_q = Starts(query_lengths);
  spec.options.cu_seqlens_k = Starts(key_lengths);
}

// Collects cases, each with a seed of its own.
class List {
 public:
  explicit List(uint64_t seed) : generator_(seed) {}

  int64_t Draw(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(generator_); }

  void Add(CaseSpec spec) {
    spec.seed = generator_();
    cases_.push_back(ConformanceCase::Create(spec).value());  // valid by construction: the lists are fixed
  }

  // One case an operation variant and dtype, as `change` makes it.
  void AddEach(
      const MaskKind& mask, int64_t queries, int64_t keys,
      const std::function<void(CaseSpec&)>& change = [](CaseSpec&) {}) {
    for (const Variant& variant : kVariants) {
      for (DType dtype : kAllDTypes) {
        CaseSpec spec;
        spec.operation = variant.operation;
        spec.optional_inputs = variant.optional_inputs;
        spec.dtype = dtype;
        SetMask(spec, mask);
        spec.query_len = queries;
        spec.key_len = keys;
        spec.head_dim = 32;
        spec.value_dim = 32;
        change(spec);
        Add(std::move(spec));
      }
    }
  }

  std::vector<ConformanceCase> Take() { return std::move(cases_); }

 private:
  std::mt19937_64 generator_;
  std::vector<ConformanceCase> cases_;
};

// Heads that give the outputs 4,096 elements, from where on the bars of bf16 and fp16 hold.
int64_t HeadsFor(int64_t length, int64_t width) {
  return std::max<int64_t>(1, (4096 + length * width - 1) / (length * width));
}

// What goes round over the mask kinds of an operation and dtype, so that it meets each feature. Batched kinds:
constexpr int kNumBatchedFeatures = 6;

void SetBatchedFeature(CaseSpec& spec, int feature) {
  switch (feature) {
    case 0:
      spec.kv_heads = 2;
      break;
    case 1:
      spec.head_dim = 24;
      spec.value_dim = 40;
      break;
    case 2:
      spec.query_len = 45;
      spec.key_len = 97;
      break;
    case 3:
      spec.query_len = 90;
      spec.key_len = 47;
      spec.batch = 2;
      break;
    case 4:
      spec.options.probes = 2;
      spec.options.scale = 0.3;
      break;
    case 5:  // several at once
      spec.options.allow_tf32 = true;
      spec.options.deterministic = true;
      spec.options.probes = 1;
      spec.options.scale = -0.2;
      spec.kv_heads = 1;
      spec.head_dim = 20;
      spec.key_len = 33;
      break;
  }
}

constexpr int kNumPackedFeatures = 3;

void SetPackedFeature(CaseSpec& spec, int feature) {
  switch (feature) {
    case 0:
      spec.kv_heads = 1;
      break;
    case 1:
      spec.head_dim = 40;
      spec.value_dim = 24;
      break;
    case 2:
      spec.options.probes = 2;
      spec.kv_heads = 2;
      break;
  }
}

// Of all kinds.
constexpr int kNumGivenFeatures = 3;

void SetGivenFeature(CaseSpec& spec, int feature, List& list) {
  if (spec.operation == Operation::kForward) return;
  switch (feature) {
    case 0:  // everything but o and lse
      break;
    case 1:
      spec.optional_inputs = spec.optional_inputs | TensorSet{kO, kLse};
      break;
    case 2: {  // one cotangent or tangent is left out
      std::vector<TensorName> names;
      (spec.optional_inputs - TensorSet{kDo}).ForEach([&](TensorName name) { names.push_back(name); });
      if (names.empty()) break;
      spec.optional_inputs.Remove(names[static_cast<size_t>(list.Draw(0, static_cast<int64_t>(names.size()) - 1))]);
      break;
    }
  }
}

}  // namespace

std::vector<ConformanceCase> QuickCases(uint64_t seed) {
  List list(seed);
  for (const Variant& variant : kVariants) {
    for (DType dtype : kAllDTypes) {
      int batched_turn = static_cast<int>(list.Draw(0, kNumBatchedFeatures - 1));
      int packed_turn = static_cast<int>(list.Draw(0, kNumPackedFeatures - 1));
      int layout_turn = static_cast<int>(list.Draw(0, 1));
      int given_turn = static_cast<int>(list.Draw(0, kNumGivenFeatures - 1));
      for (const MaskKind& kind : kMaskKinds) {
        CaseSpec spec;
        spec.operation = variant.operation;
        spec.optional_inputs = variant.optional_inputs;
        spec.dtype = dtype;
        SetMask(spec, kind);
        spec.heads = spec.kv_heads = 4;
        spec.query_len = spec.key_len = 70;
        spec.head_dim = spec.value_dim = 32;
        if (kind.packed) {
          Pack(spec, {17, 1, 0, 39, 13}, {20, 3, 5, 31, 0});
          SetPackedFeature(spec, packed_turn++ % kNumPackedFeatures);
        } else {
          if (layout_turn++ % 2 == 0) spec.options.layout = Layout::kBNHD;
          SetBatchedFeature(spec, batched_turn++ % kNumBatchedFeatures);
        }
        SetGivenFeature(spec, given_turn++ % kNumGivenFeatures, list);
        list.Add(std::move(spec));
      }
    }
  }
  return list.Take();
}

namespace {

void AddLengths(List& list) {
  for (int64_t length : {1, 3, 63, 65, 127}) {
    for (const MaskKind* mask : {&kFull, &kCausal}) {
      list.AddEach(*mask, length, length, [&](CaseSpec& spec) { spec.heads = spec.kv_heads = HeadsFor(length, 32); });
    }
  }
  list.AddEach(kFull, 1023, 1023);
  list.AddEach(kCausalBottomRight, 1023, 65, [](CaseSpec& spec) { spec.heads = spec.kv_heads = 2; });
  const std::pair<int64_t, int64_t> rectangles[] = {{1, 127}, {127, 1}, {65, 3}, {3, 63}, {63, 1023}};
  for (const auto& [queries, keys] : rectangles) {
    for (const MaskKind* mask : {&kFull, &kCausal, &kCausalBottomRight, &kWindow}) {
      list.AddEach(*mask, queries, keys, [](CaseSpec& spec) { spec.heads = spec.kv_heads = 3; });
    }
  }
  for (const auto& [queries, keys] : {std::pair<int64_t, int64_t>{0, 5}, {5, 0}, {0, 0}}) {
    for (const MaskKind* mask : {&kFull, &kCausalBottomRight}) list.AddEach(*mask, queries, keys);
  }
  list.AddEach(kFull, 5, 5, [](CaseSpec& spec) { spec.batch = 0; });
}

// A deviation of q of about 25 makes the largest of some thousand scores about 100.
void AddLargeScores(List& list) {
  for (const MaskKind* mask : {&kFull, &kCausalBottomRight, &kWindow}) {
    list.AddEach(*mask, 65, 129, [](CaseSpec& spec) {
      spec.heads = spec.kv_heads = 2;
      spec.query_deviation = 25;
    });
  }
}

void AddGroups(List& list) {
  for (int64_t group : {1, 2, 7, 32}) {
    for (Layout layout : {Layout::kBHND, Layout::kBNHD}) {
      list.AddEach(kCausal, 40, 40, [&](CaseSpec& spec) {
        spec.kv_heads = group == 32 ? 1 : 2;
        spec.heads = group * spec.kv_heads;
        spec.batch = 2;
        spec.options.layout = layout;
      });
    }
  }
}

void AddPacked(List& list) {
  const std::vector<std::vector<int64_t>> lengths = {
      {0, 1, 65, 1, 0, 3}, {1, 1, 1, 1}, {0, 0, 0}, {127}, {64, 64}, {0, 5}, {5, 0}};
  for (const MaskKind* mask : {&kFull, &kCausal, &kCausalBottomRight, &kWindow}) {
    for (const std::vector<int64_t>& query_lengths : lengths) {
      std::vector<int64_t> key_lengths(query_lengths);
      std::reverse(key_lengths.begin(), key_lengths.end());
      list.AddEach(*mask, 0, 0, [&](CaseSpec& spec) {
        spec.mask = absl::StrCat("packed-", mask->name);
        spec.heads = 4;
        spec.kv_heads = 2;
        Pack(spec, query_lengths, key_lengths);
      });
    }
  }
  list.AddEach(kPacked, 0, 0, [](CaseSpec& spec) { Pack(spec, {}, {}); });  // no sequence at all
}

void AddWindowEdges(List& list) {
  constexpr int64_t kQueries = 66;
  constexpr int64_t kKeys = 50;
  for (Alignment alignment : {Alignment::kTopLeft, Alignment::kBottomRight}) {
    for (const auto& [left, right] : {std::pair<int64_t, int64_t>{0, 0},
                                      {0, -1},
                                      {1, 0},
                                      {-1, kKeys - 1},
                                      {kKeys, kKeys},
                                      {63, 64},
                                      {int64_t{1} << 62, 0},
                                      {-1, int64_t{1} << 62}}) {
      list.AddEach(kWindow, kQueries, kKeys, [&, left = left, right = right](CaseSpec& spec) {
        spec.options.window_left = left;
        spec.options.window_right = right;
        spec.options.alignment = alignment;
        spec.heads = spec.kv_heads = 2;
      });
    }
  }
}

void AddWidths(List& list) {
  for (int64_t width : {1, 5, 80, 96, 200, 256}) {
    list.AddEach(kCausal, 33, 70, [&](CaseSpec& spec) {
      spec.head_dim = spec.value_dim = width;
      spec.heads = spec.kv_heads = HeadsFor(33, width);
    });
    list.AddEach(kFull, 33, 70, [&](CaseSpec& spec) {
      spec.head_dim = width;
      spec.value_dim = 257 - width;
      spec.heads = spec.kv_heads = 2;
    });
  }
}

// Every set of cotangents or tangents, every output alone, with and without o and lse, without and with probes.
void AddChoices(List& list) {
  const auto add = [&](Operation operation, TensorSet optional, TensorSet outputs) {
    for (bool forward_given : {false, true}) {
      CaseSpec spec;
      spec.operation = operation;
      spec.dtype = kAllDTypes[list.Draw(0, 3)];
      SetMask(spec, list.Draw(0, 1) == 0 ? kFull : kCausalBottomRight);
      spec.heads = 4;
      spec.kv_heads = 2;
      spec.query_len = 65;
      spec.key_len = 71;
      spec.head_dim = spec.value_dim = 16;
      spec.options.probes = list.Draw(0, 3);
      spec.options.layout = list.Draw(0, 1) == 0 ? Layout::kBHND : Layout::kBNHD;
      spec.optional_inputs = forward_given ? optional | TensorSet{kO, kLse} : optional;
      spec.outputs = outputs;
      list.Add(std::move(spec));
    }
  };
  const TensorName cotangents[] = {kUq, kUk, kUv};
  const TensorName tangents[] = {kTq, kTk, kTv, kDo, kTdo};
  for (unsigned bits = 0; bits < 8; ++bits) {
    TensorSet given;
    for (unsigned i = 0; i < 3; ++i) {
      if ((bits >> i & 1) != 0) given.Add(cotangents[i]);
    }
    add(Operation::kDoubleBackward, given, {});
  }
  for (unsigned bits = 0; bits < 32; ++bits) {
    TensorSet given;
    for (unsigned i = 0; i < 5; ++i) {
      if ((bits >> i & 1) != 0) given.Add(tangents[i]);
    }
    if (given.Has(kTdo) && !given.Has(kDo)) continue;
    add(Operation::kJvp, given, {});
  }
  for (const Variant& variant : kVariants) {
    if (variant.operation == Operation::kForward) continue;
    Computation::OutputsOf(variant.operation, variant.optional_inputs).ForEach([&](TensorName output) {
      add(variant.operation, variant.optional_inputs, {output});
    });
  }
}

}  // namespace

std::vector<ConformanceCase> FullCases(uint64_t seed) {
  List list(seed);
  AddLengths(list);
  AddLargeScores(list);
  AddGroups(list);
  AddPacked(list);
  AddWindowEdges(list);
  AddWidths(list);
  AddChoices(list);
  return list.Take();
}

}  // namespace flashbob::conformance
