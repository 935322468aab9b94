// The peak memory of a process that computes one double backward (fp32, one head, o and lse left out) on the CPU
// engine, past its inputs and outputs. Prints one JSON object; exit 1 where the peak is over `--slack-mib`.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "kernels/base/status_macros.h"
#include "kernels/cpu/cpu_engine.h"

namespace flashbob {
namespace {

// The high-water mark of this process's resident memory.
int64_t PeakResidentBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmHWM:", 0) == 0) return std::stoll(line.substr(6)) * 1024;
  }
  return 0;
}

absl::StatusOr<nlohmann::json> Measure(int64_t length, int64_t head_dim, int threads) {
  using enum TensorName;
  const TensorName names[] = {kQ, kK, kV, kDo, kUq, kUk, kUv};
  std::vector<TensorInfo> inputs;
  for (TensorName name : names) inputs.push_back({name, DType::kFloat32, {1, 1, length, head_dim}});
  FLASHBOB_ASSIGN_OR_RETURN(const Computation computation,
                            Computation::Create(Operation::kDoubleBackward, ProblemOptions(), inputs, {}));
  std::vector<std::vector<float>> memory;
  TensorPointers tensors;
  const auto allocate = [&](TensorName name) -> std::vector<float>& {
    memory.emplace_back(static_cast<size_t>(computation.problem().NumElements(name)));
    tensors.Set(name, memory.back().data());
    return memory.back();
  };
  std::mt19937 generator(1);
  std::normal_distribution<float> normal;
  computation.inputs().ForEach([&](TensorName name) {
    for (float& x : allocate(name)) x = normal(generator);
  });
  computation.outputs().ForEach([&](TensorName name) { allocate(name); });
  const std::unique_ptr<Engine> engine = cpu::CreateCpuEngine({.threads = threads});
  const auto start = std::chrono::steady_clock::now();
  FLASHBOB_RETURN_IF_ERROR(RunToCompletion(*engine, computation, tensors));
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  const int64_t tensor_bytes = computation.input_bytes() + computation.output_bytes();
  return nlohmann::json{{"problem", computation.problem().ToString()},
                        {"threads", engine->device().compute_units},
                        {"seconds", elapsed.count()},
                        {"gflops", computation.flops() / elapsed.count() / 1e9},
                        {"input_and_output_bytes", tensor_bytes},
                        {"peak_resident_bytes", PeakResidentBytes()},
                        {"past_inputs_and_outputs_bytes", PeakResidentBytes() - tensor_bytes}};
}

}  // namespace
}  // namespace flashbob

int main(int argc, char** argv) {
  CLI::App app("Peak memory of one double backward on the CPU engine");
  int64_t length = 65536;
  int64_t head_dim = 64;
  double slack_mib = 128;
  int threads = 0;
  app.add_option("--length", length, "Queries and keys");
  app.add_option("--head-dim", head_dim);
  app.add_option("--slack-mib", slack_mib, "What the peak may have past inputs and outputs");
  app.add_option("--threads", threads, "0: every core");
  CLI11_PARSE(app, argc, argv);
  const absl::StatusOr<nlohmann::json> measured = flashbob::Measure(length, head_dim, threads);
  if (!measured.ok()) {
    std::fprintf(stderr, "%s\n", measured.status().ToString().c_str());
    return 1;
  }
  std::puts(measured->dump(1).c_str());
  return (*measured)["past_inputs_and_outputs_bytes"].get<double>() <= slack_mib * 1024 * 1024 ? 0 : 1;
}
