// Times computations on an engine, warm, and prints one JSON object: for each, the times of its runs and the rate on
// math.md's FLOP count, by the wall and by the CPU time of all threads. Tensors and workspace are allocated once and
// lie in the device's memory; inputs are random normal.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/base/status_macros.h"
#include "kernels/convert.h"
#include "kernels/cpu/cpu_engine.h"
#include "kernels/engine.h"
#include "tests/benchmark/clocks.h"

namespace flashbob {
namespace {

using nlohmann::json;

struct Settings {
  Operation operation = Operation::kDoubleBackward;
  DType dtype = DType::kFloat32;
  int64_t batch = 1;
  int64_t heads = 4;
  int64_t length = 2048;
  int64_t head_dim = 64;
  int64_t kv_heads = 0;  // 0: heads
  int64_t probes = 0;
  int64_t window_left = -1;
  int64_t window_right = -1;
  bool forward_given = false;  // o and lse among the inputs
  int runs = 10;
};

absl::StatusOr<Computation> MakeComputation(const Settings& settings) {
  using enum TensorName;
  const int64_t kv_heads = settings.kv_heads == 0 ? settings.heads : settings.kv_heads;
  ProblemOptions options;
  options.probes = settings.probes;
  options.window_left = settings.window_left;
  options.window_right = settings.window_right;
  std::vector<TensorInfo> inputs = {
      {kQ, settings.dtype, {settings.batch, settings.heads, settings.length, settings.head_dim}},
      {kK, settings.dtype, {settings.batch, kv_heads, settings.length, settings.head_dim}},
      {kV, settings.dtype, {settings.batch, kv_heads, settings.length, settings.head_dim}}};
  FLASHBOB_ASSIGN_OR_RETURN(const AttentionProblem problem, AttentionProblem::FromShapes(options, inputs));
  TensorSet rest = Computation::AllowedInputs(settings.operation) - TensorSet{kQ, kK, kV};
  if (!settings.forward_given) rest = rest - TensorSet{kO, kLse};
  rest.ForEach([&](TensorName name) { inputs.push_back({name, problem.DTypeOf(name), problem.ShapeOf(name)}); });
  return Computation::Create(settings.operation, options, inputs, {});
}

// Memory of an engine's device, freed with this.
class DeviceMemory {
 public:
  explicit DeviceMemory(Engine& engine) : engine_(engine) {}
  ~DeviceMemory() {
    for (void* pointer : pointers_) engine_.Free(pointer);
  }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  absl::StatusOr<void*> Allocate(size_t bytes) {
    FLASHBOB_ASSIGN_OR_RETURN(void* pointer, engine_.Allocate(std::max<size_t>(bytes, 1)));
    pointers_.push_back(pointer);
    return pointer;
  }

 private:
  Engine& engine_;
  std::vector<void*> pointers_;
};

absl::Status FillNormal(Engine& engine, Stream& stream, const AttentionProblem& problem, TensorName name, void* device,
                        std::mt19937_64& generator) {
  std::normal_distribution<double> normal;
  std::vector<double> values(static_cast<size_t>(problem.NumElements(name)));
  // lse is not random: any values would do for the time, but only plausible ones keep P finite.
  const double shift = name == TensorName::kLse ? 8 : 0;
  for (double& value : values) value = shift + normal(generator) * (shift > 0 ? 0.1 : 1.0);
  std::vector<char> bytes(static_cast<size_t>(problem.NumBytes(name)));
  FromDoubles(problem.DTypeOf(name), values, bytes.data());
  FLASHBOB_RETURN_IF_ERROR(engine.CopyToDevice(device, bytes.data(), bytes.size(), stream));
  return stream.Synchronize();
}

absl::StatusOr<json> Time(Engine& engine, const Settings& settings) {
  FLASHBOB_ASSIGN_OR_RETURN(const Computation computation, MakeComputation(settings));
  FLASHBOB_ASSIGN_OR_RETURN(const std::unique_ptr<const Plan> plan, engine.MakePlan(computation));
  FLASHBOB_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, engine.CreateStream());
  DeviceMemory memory(engine);
  TensorPointers tensors;
  std::mt19937_64 generator(settings.length);
  for (int i = 0; i < kNumTensorNames; ++i) {
    const auto name = static_cast<TensorName>(i);
    if (!computation.HasInput(name) && !computation.Wants(name)) continue;
    const AttentionProblem& problem = computation.problem();
    FLASHBOB_ASSIGN_OR_RETURN(void* pointer, memory.Allocate(static_cast<size_t>(problem.NumBytes(name))));
    tensors.Set(name, pointer);
    if (computation.HasInput(name)) {
      FLASHBOB_RETURN_IF_ERROR(FillNormal(engine, *stream, problem, name, pointer, generator));
    }
  }
  FLASHBOB_ASSIGN_OR_RETURN(void* workspace, memory.Allocate(plan->workspace_bytes()));

  std::vector<double> wall;
  std::vector<double> cpu;
  double longest_launch = 0;
  for (int run = -1; run < settings.runs; ++run) {
    const Times start = ProcessNow();
    for (int slice = 0; slice < plan->num_slices(); ++slice) {
      const Times launch = ProcessNow();
      FLASHBOB_RETURN_IF_ERROR(engine.Launch(*plan, slice, tensors, workspace, *stream));
      if (run >= 0) longest_launch = std::max(longest_launch, (ProcessNow() - launch).wall);
    }
    FLASHBOB_RETURN_IF_ERROR(stream->Synchronize());
    const Times elapsed = ProcessNow() - start;
    if (run < 0) continue;  // the first one warms up
    wall.push_back(elapsed.wall);
    cpu.push_back(elapsed.cpu);
  }
  std::sort(wall.begin(), wall.end());
  const double cpu_seconds = *std::min_element(cpu.begin(), cpu.end()) / engine.device().compute_units;
  const double gflop = computation.flops() / 1e9;
  return json{{"operation", Name(settings.operation)},
              {"problem", computation.problem().ToString()},
              {"forward_given", settings.forward_given},
              {"flop", computation.flops()},
              {"runs", settings.runs},
              {"slices", plan->num_slices()},
              {"longest_launch_ms", longest_launch * 1e3},
              {"workspace_bytes", plan->workspace_bytes()},
              {"best_ms", wall.front() * 1e3},
              {"median_ms", wall[wall.size() / 2] * 1e3},
              {"best_gflops", gflop / wall.front()},
              {"median_gflops", gflop / wall[wall.size() / 2]},
              {"best_gflops_by_cpu_time", gflop / cpu_seconds}};
}

absl::Status Run(const std::vector<std::string>& shapes, Settings settings, int threads) {
  const std::unique_ptr<Engine> engine = cpu::CreateCpuEngine({.threads = threads});
  json result = {{"device", engine->device().model}, {"threads", engine->device().compute_units}};
  for (const std::string& shape : shapes) {
    const std::vector<std::string> fields = absl::StrSplit(shape, ',');
    int64_t* const extents[] = {&settings.batch, &settings.heads, &settings.length, &settings.head_dim};
    bool valid = fields.size() == 4;
    for (size_t i = 0; valid && i < 4; ++i) valid = absl::SimpleAtoi(fields[i], extents[i]);
    if (!valid) return absl::InvalidArgumentError(absl::StrCat("--shape ", shape, " is not B,H,N,D"));
    FLASHBOB_ASSIGN_OR_RETURN(json timed, Time(*engine, settings));
    result["computations"].push_back(std::move(timed));
  }
  std::puts(result.dump(1).c_str());
  return absl::OkStatus();
}

}  // namespace
}  // namespace flashbob

int main(int argc, char** argv) {
  using namespace flashbob;
  CLI::App app("Times attention's derivatives on an engine");
  Settings settings;
  std::vector<std::string> shapes = {"1,4,2048,64"};
  std::string operation = Name(settings.operation);
  std::string dtype = Name(settings.dtype);
  bool causal = false;
  int threads = 0;
  app.add_option("--op", operation, "forward, backward, double_backward or jvp");
  app.add_option("--dtype", dtype, "fp64, fp32, bf16 or fp16");
  app.add_option("--shape", shapes, "B,H,N,D; may be given several times");
  app.add_option("--kv-heads", settings.kv_heads, "Default: as many as heads");
  app.add_option("--probes", settings.probes);
  app.add_option("--window-left", settings.window_left, "Keys to the left of the diagonal; -1 open");
  app.add_flag("--causal", causal);
  app.add_flag("--forward-given", settings.forward_given, "o and lse are inputs");
  app.add_option("--runs", settings.runs)->check(CLI::PositiveNumber);
  app.add_option("--threads", threads, "0: every core");
  CLI11_PARSE(app, argc, argv);
  const std::optional<Operation> parsed_operation = ParseOperation(operation);
  const std::optional<DType> parsed_dtype = ParseDType(dtype);
  if (!parsed_operation.has_value() || !parsed_dtype.has_value()) {
    std::fprintf(stderr, "no such operation or dtype: %s %s\n", operation.c_str(), dtype.c_str());
    return 2;
  }
  settings.operation = *parsed_operation;
  settings.dtype = *parsed_dtype;
  if (causal) settings.window_right = 0;
  const absl::Status status = Run(shapes, settings, threads);
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return 1;
  }
  return 0;
}
