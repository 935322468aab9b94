#include "tests/soak/catalogue.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "client/cli/client_request.h"
#include "kernels/conformance/cases.h"
#include "kernels/cpu/cpu_engine.h"

namespace flashbob::soak {
namespace {

using conformance::CaseSpec;
using conformance::ConformanceCase;
using conformance::HostTensor;
using enum TensorName;

// One in so many requests is large.
constexpr uint64_t kLargeShare = 25;

CaseSpec SpecOf(Operation operation, DType dtype, int64_t queries, int64_t keys, int64_t dim) {
  CaseSpec spec;
  spec.operation = operation;
  spec.dtype = dtype;
  spec.query_len = queries;
  spec.key_len = keys;
  spec.head_dim = dim;
  spec.value_dim = dim;
  if (operation == Operation::kDoubleBackward) spec.optional_inputs = {kUq, kUk, kUv};
  if (operation == Operation::kJvp) spec.optional_inputs = {kTq, kTk, kTv, kDo, kTdo};
  return spec;
}

// Large in bytes, or in work: the last ones take some tenths of a second of a core.
std::vector<CaseSpec> LargeSpecs() {
  std::vector<CaseSpec> specs;
  for (Operation operation : kAllOperations) {
    specs.push_back(SpecOf(operation, DType::kFloat32, 20000, 8, 64));
    specs.push_back(SpecOf(operation, DType::kBFloat16, 12000, 33, 128));
    specs.push_back(SpecOf(operation, DType::kFloat64, 5, 9000, 64));
    specs.push_back(SpecOf(operation, DType::kFloat32, 1024, 1024, 64));
    specs.back().options.window_right = 0;
  }
  return specs;
}

// Lengths at which something is empty.
std::vector<CaseSpec> EmptySpecs() {
  std::vector<CaseSpec> specs;
  for (Operation operation : kAllOperations) {
    specs.push_back(SpecOf(operation, DType::kFloat32, 0, 5, 16));
    specs.push_back(SpecOf(operation, DType::kFloat16, 7, 0, 16));
  }
  return specs;
}

std::unique_ptr<const Entry> MakeEntry(Engine& engine, const ConformanceCase& c) {
  auto entry = std::make_unique<Entry>();
  const Computation& computation = c.computation();
  const AttentionProblem& problem = computation.problem();
  entry->name = absl::StrCat(Name(computation.operation()), " ", c.shape());
  TensorPointers tensors;
  const std::map<TensorName, std::vector<double>> inputs = conformance::MakeInputs(c).value();
  entry->inputs.reserve(inputs.size());
  for (const auto& [name, values] : inputs) {
    tensors.Set(name, entry->inputs.emplace_back(problem.DTypeOf(name), values).data());
    entry->bytes += problem.NumBytes(name);
  }
  computation.outputs().ForEach([&](TensorName name) {
    std::vector<std::byte>& bytes = entry->expected[Name(name)];
    bytes.resize(static_cast<size_t>(problem.NumBytes(name)));
    entry->bytes += problem.NumBytes(name);
    tensors.Set(name, bytes.data());
  });
  const absl::Status computed = RunToCompletion(engine, computation, tensors);
  if (!computed.ok()) {
    std::fprintf(stderr, "%s: %s\n", entry->name.c_str(), computed.ToString().c_str());
    std::abort();
  }
  entry->request = cli::ToClientRequest(computation, tensors);
  for (client::WantedOutput& output : entry->request.outputs) output.into.reset();
  return entry;
}

}  // namespace

std::string Entry::Check(const std::string& output, const client::Tensor& tensor) const {
  const auto wanted = expected.find(output);
  if (wanted == expected.end()) return absl::StrCat(name, ": ", output, " was not asked for");
  const std::span<const std::byte> bytes = tensor.bytes();
  if (std::equal(bytes.begin(), bytes.end(), wanted->second.begin(), wanted->second.end())) return "";
  return absl::StrCat(name, ": ", output, " has other bits than in process");
}

std::string Entry::Check(const client::Result& result) const {
  if (result.outputs.size() != expected.size()) return absl::StrCat(name, ": ", result.outputs.size(), " outputs");
  for (const client::NamedOutput& output : result.outputs) {
    if (output.stored.has_value()) continue;
    std::string wrong = Check(output.name, output.tensor);
    if (!wrong.empty()) return wrong;
  }
  return "";
}

Catalogue::Catalogue(uint64_t seed) {
  const std::unique_ptr<Engine> engine = cpu::CreateCpuEngine({});
  std::mt19937_64 random(seed);
  for (const ConformanceCase& c : conformance::QuickCases(seed)) small_.push_back(MakeEntry(*engine, c));
  for (CaseSpec spec : EmptySpecs()) small_.push_back(MakeEntry(*engine, ConformanceCase::Create(spec).value()));
  for (CaseSpec spec : LargeSpecs()) {
    spec.seed = random();
    large_.push_back(MakeEntry(*engine, ConformanceCase::Create(spec).value()));
  }
}

const Entry& Catalogue::Draw(std::mt19937_64& random) const {
  return random() % kLargeShare == 0 ? DrawLarge(random) : *small_[random() % small_.size()];
}

const Entry& Catalogue::DrawLarge(std::mt19937_64& random) const { return *large_[random() % large_.size()]; }

}  // namespace flashbob::soak
