#include "tests/fuzz/random_spec.h"

#include <algorithm>
#include <map>
#include <stdexcept>

#include "kernels/conformance/host_tensor.h"
#include "server/service/spec.h"

namespace flashbob::fuzz {
namespace {

using conformance::HostTensor;

int64_t Below(std::mt19937_64& random, int64_t end) {
  return static_cast<int64_t>(random() % static_cast<uint64_t>(end));
}

// B + 1 starts that end at `total`.
std::vector<int64_t> Starts(std::mt19937_64& random, int64_t sequences, int64_t total) {
  std::vector<int64_t> starts = {0, total};
  for (int64_t i = 1; i < sequences; ++i) starts.push_back(Below(random, total + 1));
  std::sort(starts.begin(), starts.end());
  return starts;
}

ProblemOptions RandomOptions(std::mt19937_64& random, int64_t queries, int64_t keys) {
  ProblemOptions options;
  options.layout = static_cast<Layout>(random() % 3);
  if (random() % 2 == 0) {
    options.window_left = Below(random, 6) - 1;
    options.window_right = Below(random, 4) - 1;
    options.alignment = static_cast<Alignment>(random() % 2);
  }
  if (random() % 4 == 0) options.scale = 0.25 * static_cast<double>(random() % 8);
  options.probes = std::max<int64_t>(0, Below(random, 5) - 2);
  options.deterministic = random() % 8 == 0;
  if (options.layout == Layout::kTHD) {
    const int64_t sequences = 1 + Below(random, 3);
    options.cu_seqlens_q = Starts(random, sequences, queries);
    options.cu_seqlens_k = Starts(random, sequences, keys);
  }
  return options;
}

TensorSet RandomInputs(std::mt19937_64& random, Operation operation) {
  TensorSet inputs = Computation::RequiredInputs(operation);
  (Computation::AllowedInputs(operation) - inputs).ForEach([&](TensorName name) {
    if (random() % 2 == 0) inputs.Add(name);
  });
  if (inputs.Has(TensorName::kO) != inputs.Has(TensorName::kLse)) {
    inputs.Remove(TensorName::kO);
    inputs.Remove(TensorName::kLse);
  }
  if (!inputs.Has(TensorName::kDo)) inputs.Remove(TensorName::kTdo);
  return inputs;
}

AttentionProblem RandomShapes(std::mt19937_64& random) {
  const int64_t queries = Below(random, 10);
  const int64_t keys = Below(random, 10);
  const ProblemOptions options = RandomOptions(random, queries, keys);
  const int64_t batch = 1 + Below(random, 2);
  const int64_t kv_heads = 1 + Below(random, 2);
  const int64_t heads = kv_heads * (1 + Below(random, 2));
  const auto dtype = static_cast<DType>(random() % std::size(kAllDTypes));
  const auto shape = [&](int64_t with_heads, int64_t length, int64_t width) -> Shape {
    if (options.layout == Layout::kBHND) return {batch, with_heads, length, width};
    if (options.layout == Layout::kBNHD) return {batch, length, with_heads, width};
    return {length, with_heads, width};
  };
  const int64_t head_dim = 1 + Below(random, 9);
  const int64_t value_dim = 1 + Below(random, 9);
  const absl::StatusOr<AttentionProblem> problem =
      AttentionProblem::FromShapes(options, {{TensorName::kQ, dtype, shape(heads, queries, head_dim)},
                                             {TensorName::kK, dtype, shape(kv_heads, keys, head_dim)},
                                             {TensorName::kV, dtype, shape(kv_heads, keys, value_dim)}});
  if (!problem.ok()) throw std::logic_error(problem.status().ToString());
  return *problem;
}

void SetProblem(const ProblemOptions& options, v1::Problem& proto) {
  proto.set_layout(server::ToProto(options.layout));
  proto.mutable_mask()->set_left(options.window_left);
  proto.mutable_mask()->set_right(options.window_right);
  proto.mutable_mask()->set_alignment(options.alignment == Alignment::kTopLeft ? v1::MASK_ALIGNMENT_TOP_LEFT
                                                                               : v1::MASK_ALIGNMENT_BOTTOM_RIGHT);
  if (options.scale.has_value()) proto.set_scale(*options.scale);
  proto.set_probes(options.probes);
  proto.mutable_cu_seqlens_q()->Add(options.cu_seqlens_q.begin(), options.cu_seqlens_q.end());
  proto.mutable_cu_seqlens_k()->Add(options.cu_seqlens_k.begin(), options.cu_seqlens_k.end());
  proto.set_deterministic(options.deterministic);
}

std::string RandomBytes(std::mt19937_64& random, DType dtype, int64_t elements) {
  std::vector<double> values(static_cast<size_t>(elements));
  for (double& value : values) value = static_cast<double>(random() % 17) / 8 - 1;
  const HostTensor tensor(dtype, values);
  return {static_cast<const char*>(tensor.data()), tensor.bytes()};
}

}  // namespace

RandomProblem MakeRandomProblem(std::mt19937_64& random) {
  const AttentionProblem problem = RandomShapes(random);
  const Operation operation = kAllOperations[random() % std::size(kAllOperations)];
  const TensorSet inputs = RandomInputs(random, operation);
  RandomProblem made;
  made.spec.set_operation(server::ToProto(operation));
  SetProblem(problem.options(), *made.spec.mutable_problem());
  std::vector<TensorName> order;
  inputs.ForEach([&](TensorName name) { order.push_back(name); });
  std::shuffle(order.begin(), order.end(), random);
  for (TensorName name : order) {
    v1::InputTensor& input = *made.spec.add_inputs();
    *input.mutable_tensor() = server::ToProto(problem, name);
    input.mutable_inline_();
    made.inputs.push_back(RandomBytes(random, problem.DTypeOf(name), problem.NumElements(name)));
  }
  const TensorSet possible = Computation::OutputsOf(operation, inputs);
  possible.ForEach([&](TensorName name) {
    if (random() % 4 == 0 && made.spec.outputs_size() > 0) return;
    v1::OutputTensor& output = *made.spec.add_outputs();
    output.set_name(server::ToProto(name));
    output.mutable_inline_();
  });
  return made;
}

std::vector<std::string> ComputeHere(Engine& engine, const RandomProblem& problem) {
  const absl::StatusOr<server::ParsedSpec> parsed = server::ParseSpec(problem.spec);
  if (!parsed.ok()) throw std::logic_error(parsed.status().ToString());
  const AttentionProblem& shapes = parsed->computation.problem();
  TensorPointers pointers;
  std::map<TensorName, HostTensor> tensors;
  const auto place = [&](TensorName name) -> HostTensor& {
    return tensors.try_emplace(name, shapes.DTypeOf(name), static_cast<size_t>(shapes.NumElements(name))).first->second;
  };
  for (size_t i = 0; i < parsed->inputs.size(); ++i) {
    HostTensor& tensor = place(parsed->inputs[i]);
    std::copy(problem.inputs[i].begin(), problem.inputs[i].end(), static_cast<char*>(tensor.data()));
    pointers.SetInput(parsed->inputs[i], tensor.data());
  }
  for (TensorName name : parsed->outputs) pointers.Set(name, place(name).data());
  const absl::Status status = RunToCompletion(engine, parsed->computation, pointers);
  if (!status.ok()) throw std::logic_error(status.ToString());
  std::vector<std::string> outputs;
  for (TensorName name : parsed->outputs) {
    const HostTensor& tensor = tensors.at(name);
    outputs.emplace_back(static_cast<const char*>(tensor.data()), tensor.bytes());
  }
  return outputs;
}

}  // namespace flashbob::fuzz
