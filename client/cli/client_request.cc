#include "client/cli/client_request.h"

#include <cstddef>
#include <span>

namespace flashbob::cli {
namespace {

client::Operation ToClient(Operation operation) {
  switch (operation) {
    case Operation::kForward:
      return client::Operation::kForward;
    case Operation::kBackward:
      return client::Operation::kBackward;
    case Operation::kDoubleBackward:
      return client::Operation::kDoubleBackward;
    case Operation::kJvp:
      return client::Operation::kJvp;
  }
  return client::Operation::kForward;
}

client::DataType ToClient(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16:
      return client::DataType::kBF16;
    case DType::kFloat16:
      return client::DataType::kFP16;
    case DType::kFloat32:
      return client::DataType::kFP32;
    case DType::kFloat64:
      return client::DataType::kFP64;
  }
  return client::DataType::kFP32;
}

client::Layout ToClient(Layout layout) {
  switch (layout) {
    case Layout::kBHND:
      return client::Layout::kBHND;
    case Layout::kBNHD:
      return client::Layout::kBNHD;
    case Layout::kTHD:
      return client::Layout::kTHD;
  }
  return client::Layout::kBHND;
}

client::AttentionOptions ToClient(const ProblemOptions& options) {
  client::AttentionOptions converted;
  converted.layout = ToClient(options.layout);
  converted.window_left = options.window_left;
  converted.window_right = options.window_right;
  converted.alignment =
      options.alignment == Alignment::kBottomRight ? client::Alignment::kBottomRight : client::Alignment::kTopLeft;
  converted.scale = options.scale;
  converted.probes = options.probes;
  converted.cu_seqlens_q = options.cu_seqlens_q;
  converted.cu_seqlens_k = options.cu_seqlens_k;
  converted.allow_tf32 = options.allow_tf32;
  converted.deterministic = options.deterministic;
  return converted;
}

}  // namespace

client::Request ToClientRequest(const Computation& computation, const TensorPointers& tensors) {
  const AttentionProblem& problem = computation.problem();
  const auto bytes_of = [&](TensorName name) {
    return std::span(static_cast<std::byte*>(tensors.Get(name)), static_cast<size_t>(problem.NumBytes(name)));
  };
  client::Request request;
  request.operation = ToClient(computation.operation());
  request.options = ToClient(problem.options());
  computation.inputs().ForEach([&](TensorName name) {
    request.inputs.push_back(
        {Name(name),
         {ToClient(problem.DTypeOf(name)), std::span<const std::byte>(bytes_of(name)), problem.ShapeOf(name)}});
  });
  computation.outputs().ForEach([&](TensorName name) { request.outputs.push_back({Name(name), bytes_of(name)}); });
  return request;
}

}  // namespace flashbob::cli
