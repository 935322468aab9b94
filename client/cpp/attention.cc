#include "flashbob/attention.h"

namespace flashbob::client {

const char* Name(Operation operation) {
  switch (operation) {
    case Operation::kForward:
      return "forward";
    case Operation::kBackward:
      return "backward";
    case Operation::kDoubleBackward:
      return "double_backward";
    case Operation::kJvp:
      return "jvp";
  }
  return "unknown";
}

std::vector<NamedTensor> Inputs::Named() const {
  std::vector<NamedTensor> named;
  const auto add = [&](const char* name, const TensorView& tensor) {
    if (tensor.given()) named.push_back({name, tensor});
  };
  add("q", q);
  add("k", k);
  add("v", v);
  add("do", dout);
  add("uq", uq);
  add("uk", uk);
  add("uv", uv);
  add("tq", tq);
  add("tk", tk);
  add("tv", tv);
  add("tdo", tdo);
  add("o", o);
  add("lse", lse);
  return named;
}

const Tensor* Result::Find(std::string_view name) const {
  for (const NamedOutput& output : outputs) {
    if (output.name == name) return &output.tensor;
  }
  return nullptr;
}

}  // namespace flashbob::client
