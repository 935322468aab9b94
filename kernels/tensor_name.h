// TensorName and TensorSet: the tensors of attention's derivatives and which shape each has.
#ifndef FLASHBOB_KERNELS_TENSOR_NAME_H_
#define FLASHBOB_KERNELS_TENSOR_NAME_H_

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

namespace flashbob {

// Names as in proto/flashbob/v1/tensor.proto, which says what each is.
enum class TensorName : uint8_t {
  kQ,
  kK,
  kV,  // NOLINT: grouped by operation
  kO,
  kLse,  // outputs of forward; optional inputs elsewhere
  kDo,   // cotangent of o
  kUq,
  kUk,
  kUv,  // cotangents of dq, dk, dv
  kTq,
  kTk,
  kTv,
  kTdo,  // tangents
  kDq,
  kDk,
  kDv,  // outputs of backward
  kGq,
  kGk,
  kGv,
  kGdo,  // outputs of double backward
  kTo,
  kTlse,
  kTdq,
  kTdk,
  kTdv,  // outputs of jvp
};

inline constexpr int kNumTensorNames = 25;

// "q", "lse", "gdo", ...: the names in files, flags and messages.
const char* Name(TensorName name);

// The tensor of that name, or nothing.
std::optional<TensorName> ParseTensorName(std::string_view name);

// Whether it has the query heads and the query length (else the kv heads and the key length).
bool IsQuerySide(TensorName name);

// Whether it leads with the probe axis where a problem has one.
bool HasProbeAxis(TensorName name);

// What the innermost axis holds: the head dim, the value dim, or, for lse and tlse, nothing (there is no such axis).
enum class Width : uint8_t { kHeadDim, kValueDim, kNone };
Width WidthOf(TensorName name);

// A set of tensor names.
class TensorSet {
 public:
  constexpr TensorSet() = default;
  constexpr TensorSet(std::initializer_list<TensorName> names) {
    for (TensorName name : names) Add(name);
  }
  constexpr void Add(TensorName name) { bits_ |= Bit(name); }
  constexpr void Remove(TensorName name) { bits_ &= ~Bit(name); }
  constexpr bool Has(TensorName name) const { return (bits_ & Bit(name)) != 0; }
  constexpr bool HasAny(TensorSet other) const { return (bits_ & other.bits_) != 0; }
  constexpr bool HasAll(TensorSet other) const { return (other.bits_ & ~bits_) == 0; }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr TensorSet operator|(TensorSet other) const { return TensorSet(bits_ | other.bits_); }
  constexpr TensorSet operator&(TensorSet other) const { return TensorSet(bits_ & other.bits_); }
  constexpr TensorSet operator-(TensorSet other) const { return TensorSet(bits_ & ~other.bits_); }
  constexpr bool operator==(const TensorSet&) const = default;

  // Calls visit(TensorName) for each member, in the order of the enum.
  template <typename Visitor>
  constexpr void ForEach(Visitor visit) const {
    for (int i = 0; i < kNumTensorNames; ++i) {
      if (Has(static_cast<TensorName>(i))) visit(static_cast<TensorName>(i));
    }
  }

  // "q, k, v"; "none" where empty.
  std::string ToString() const;

 private:
  explicit constexpr TensorSet(uint32_t bits) : bits_(bits) {}
  static constexpr uint32_t Bit(TensorName name) { return uint32_t{1} << static_cast<int>(name); }

  uint32_t bits_ = 0;
};

}  // namespace flashbob

#endif  // FLASHBOB_KERNELS_TENSOR_NAME_H_
