#include "kernels/tensor_name.h"

namespace flashbob {
namespace {

struct Traits {
  const char* name;
  bool query_side;
  bool probe_axis;
  Width width;
};

// In the order of the enum.
constexpr Traits kTraits[kNumTensorNames] = {
    {"q", true, false, Width::kHeadDim},    {"k", false, false, Width::kHeadDim},
    {"v", false, false, Width::kValueDim},  {"o", true, false, Width::kValueDim},
    {"lse", true, false, Width::kNone},     {"do", true, false, Width::kValueDim},
    {"uq", true, true, Width::kHeadDim},    {"uk", false, true, Width::kHeadDim},
    {"uv", false, true, Width::kValueDim},  {"tq", true, true, Width::kHeadDim},
    {"tk", false, true, Width::kHeadDim},   {"tv", false, true, Width::kValueDim},
    {"tdo", true, true, Width::kValueDim},  {"dq", true, false, Width::kHeadDim},
    {"dk", false, false, Width::kHeadDim},  {"dv", false, false, Width::kValueDim},
    {"gq", true, true, Width::kHeadDim},    {"gk", false, true, Width::kHeadDim},
    {"gv", false, true, Width::kValueDim},  {"gdo", true, true, Width::kValueDim},
    {"to", true, true, Width::kValueDim},   {"tlse", true, true, Width::kNone},
    {"tdq", true, true, Width::kHeadDim},   {"tdk", false, true, Width::kHeadDim},
    {"tdv", false, true, Width::kValueDim},
};

const Traits& TraitsOf(TensorName name) { return kTraits[static_cast<int>(name)]; }

}  // namespace

const char* Name(TensorName name) { return TraitsOf(name).name; }

std::optional<TensorName> ParseTensorName(std::string_view name) {
  for (int i = 0; i < kNumTensorNames; ++i) {
    if (name == kTraits[i].name) return static_cast<TensorName>(i);
  }
  return std::nullopt;
}

bool IsQuerySide(TensorName name) { return TraitsOf(name).query_side; }
bool HasProbeAxis(TensorName name) { return TraitsOf(name).probe_axis; }
Width WidthOf(TensorName name) { return TraitsOf(name).width; }

std::string TensorSet::ToString() const {
  std::string text;
  ForEach([&](TensorName name) {
    if (!text.empty()) text += ", ";
    text += Name(name);
  });
  return text.empty() ? "none" : text;
}

}  // namespace flashbob
