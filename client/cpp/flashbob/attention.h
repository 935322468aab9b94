// Request, Result: one operation of attention, what goes in and what comes back.
//
// With S = scale Q K^T (masked), P = softmax(S), O = P V, the operations and their tensors are
//   forward           q k v                               -> o lse
//   backward          q k v do                            -> dq dk dv
//   double_backward   q k v do, any of uq uk uv           -> gq gk gv gdo, the gradients of <uq,dq> + <uk,dk> + <uv,dv>
//   jvp               q k v, any of tq tk tv              -> to tlse; with do, and optionally tdo, also tdq tdk tdv
// All but forward also take o and lse, both or neither: the server recomputes them where they are left out.
// Plain values; thread safety as of any value.
#ifndef FLASHBOB_CLIENT_CPP_FLASHBOB_ATTENTION_H_
#define FLASHBOB_CLIENT_CPP_FLASHBOB_ATTENTION_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "flashbob/tensor.h"

namespace flashbob::client {

enum class Operation : uint8_t { kForward, kBackward, kDoubleBackward, kJvp };
const char* Name(Operation operation);  // "forward", "backward", "double_backward", "jvp"

// Order of the axes of every tensor of a call.
enum class Layout : uint8_t {
  kBHND,  // [batch, heads, N, D]
  kBNHD,  // [batch, N, heads, D]
  kTHD,   // [total tokens, heads, D]: sequences packed one after the other, beginning at cu_seqlens
};

// Which corner the mask's diagonal starts from, where there are not as many keys as queries.
enum class Alignment : uint8_t { kTopLeft, kBottomRight };

// What the shapes of the tensors do not say. Key j is visible to query i when
// i + s - window_left <= j <= i + s + window_right, with s = 0 (top-left) or N_k - N_q (bottom-right).
struct AttentionOptions {
  Layout layout = Layout::kBHND;
  bool causal = false;        // the same as window_right = 0, whatever window_right says
  int64_t window_left = -1;   // -1: open
  int64_t window_right = -1;  // -1: open
  Alignment alignment = Alignment::kTopLeft;
  std::optional<double> scale = std::nullopt;  // of the softmax; left out: 1 / sqrt(head dim)
  // P >= 1: u's, t's, g's, to, tlse and td's lead with an axis of P, also for 1. 0: they have no such axis.
  int64_t probes = 0;
  std::vector<int64_t> cu_seqlens_q = {};  // kTHD only: B + 1 starts, the first 0, the last the number of tokens
  std::vector<int64_t> cu_seqlens_k = {};
  bool allow_tf32 = false;     // fp32 factors may be rounded to TF32
  bool deterministic = false;  // the same bits from run to run on one device
};

struct NamedTensor {
  std::string name;  // as in the table above
  TensorView tensor = {};
  std::optional<StoredTensor> stored = std::nullopt;  // in place of `tensor`: it is on the server already
};

struct WantedOutput {
  std::string name;
  // Where it is written; left out: the Result owns it.
  std::optional<std::span<std::byte>> into = std::nullopt;
  // It stays on the server for so long after each use, and is not sent; 0: as long as the server likes.
  std::optional<std::chrono::seconds> keep = std::nullopt;
};

struct Request {
  Operation operation = Operation::kForward;
  AttentionOptions options = {};
  std::vector<NamedTensor> inputs = {};
  std::vector<WantedOutput> outputs = {};  // empty: all that the operation gives
  // At most 128 bytes of printable ASCII, under which the server logs the request; empty: a random one.
  std::string request_id = {};
};

// The inputs of an operation by name, for Client::Forward and its kin; those left out are not sent.
struct Inputs {
  TensorView q = {};
  TensorView k = {};
  TensorView v = {};
  TensorView dout = {};  // `do`, which is a word of C++
  TensorView uq = {};
  TensorView uk = {};
  TensorView uv = {};
  TensorView tq = {};
  TensorView tk = {};
  TensorView tv = {};
  TensorView tdo = {};
  TensorView o = {};
  TensorView lse = {};

  std::vector<NamedTensor> Named() const;
};

// Where the time went, on the server.
struct Timings {
  std::chrono::nanoseconds receive{0};  // from the spec to the last input byte
  std::chrono::nanoseconds queue{0};    // from there to the first work on a device
  std::chrono::nanoseconds compute{0};  // on the device
};

struct NamedOutput {
  std::string name;
  Tensor tensor;
  std::optional<StoredTensor> stored = std::nullopt;  // in place of `tensor`: it was to be kept
};

struct Result {
  std::vector<NamedOutput> outputs;
  Timings timings;
  std::string device;      // as in ServerInfo::devices
  std::string request_id;  // as the server logged it
  double flops = 0;        // of the call, by the formula: 2 x visible pairs x products x dims

  // Null where there is none of that name.
  const Tensor* Find(std::string_view name) const;
  // The elements of an output; empty where there is none of that name or its elements are not of type T.
  template <typename T>
  std::span<const T> Values(std::string_view name) const {
    const Tensor* tensor = Find(name);
    return tensor == nullptr ? std::span<const T>() : tensor->Values<T>();
  }
};

}  // namespace flashbob::client

#endif  // FLASHBOB_CLIENT_CPP_FLASHBOB_ATTENTION_H_
