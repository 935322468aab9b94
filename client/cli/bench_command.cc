// flashbob bench: closed-loop load of one operation on one shape.
#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "client/cli/command.h"
#include "client/cli/exit_code.h"
#include "client/cli/host_buffer.h"
#include "client/cli/load.h"
#include "client/cli/milliseconds.h"
#include "client/cli/problem_flags.h"
#include "client/cli/progress_bar.h"
#include "kernels/base/status_macros.h"
#include "kernels/conformance/case.h"
#include "kernels/convert.h"

namespace flashbob::cli {
namespace {

constexpr char kDescription[] = "Measure one operation under closed-loop load";

constexpr char kExamples[] =
    R"(Each of --concurrency callers sends the same request, waits for the result, and sends it again; the first of each is not
counted. TFLOP/s are on the FLOP count of README.md, GB/s on the tensors' bytes both ways. wire, queue and compute are
means: queue and compute as the server says, wire what is left of the time that the caller saw.

Examples:
  flashbob bench
  flashbob bench --shape 1,16,4096,64 --op double_backward --dtype bf16 --concurrency 2 --duration 10
  flashbob bench --shape 1,32/4,8192,128 --op forward --causal top-left --embedded --json)";

using HostTensors = std::map<TensorName, HostBuffer>;

// "B,H,N,D", or with "H/HKV" for fewer kv heads.
absl::StatusOr<conformance::CaseSpec> ParseShape(const std::string& text) {
  const auto error = [&] {
    return absl::InvalidArgumentError(absl::StrCat("--shape ", text, " is not B,H,N,D or B,H/HKV,N,D"));
  };
  const std::vector<std::string> parts = absl::StrSplit(text, ',');
  if (parts.size() != 4) return error();
  const std::vector<std::string> heads = absl::StrSplit(parts[1], absl::MaxSplits('/', 1));
  conformance::CaseSpec spec;
  if (!absl::SimpleAtoi(parts[0], &spec.batch) || !absl::SimpleAtoi(heads.front(), &spec.heads) ||
      !absl::SimpleAtoi(heads.back(), &spec.kv_heads) || !absl::SimpleAtoi(parts[2], &spec.query_len) ||
      !absl::SimpleAtoi(parts[3], &spec.head_dim)) {
    return error();
  }
  spec.key_len = spec.query_len;
  spec.value_dim = spec.head_dim;
  return spec;
}

// Buffers for all members of a set.
absl::StatusOr<HostTensors> Allocate(const AttentionProblem& problem, TensorSet names) {
  HostTensors tensors;
  absl::Status status = absl::OkStatus();
  names.ForEach([&](TensorName name) {
    absl::StatusOr<HostBuffer> buffer = HostBuffer::Create(static_cast<size_t>(problem.NumBytes(name)));
    if (!buffer.ok()) return status.Update(buffer.status());
    tensors.emplace(name, *std::move(buffer));
  });
  if (!status.ok()) return status;
  return tensors;
}

// Standard normal elements, over and over: to draw a large tensor whole would take longer than to measure. The period
// divides no row length, so that rows differ.
void FillNormal(DType dtype, std::span<std::byte> bytes, std::mt19937_64& random) {
  constexpr size_t kPeriod = (size_t{1} << 20) + 7;
  std::normal_distribution<double> normal;
  std::vector<double> values(std::min(kPeriod, bytes.size() / SizeOf(dtype)));
  for (double& value : values) value = normal(random);
  FromDoubles(dtype, values, bytes.data());
  const size_t drawn = values.size() * SizeOf(dtype);
  for (size_t done = drawn; done < bytes.size(); done += drawn) {
    std::memcpy(bytes.data() + done, bytes.data(), std::min(drawn, bytes.size() - done));
  }
}

class BenchCommand : public Command {
 public:
  explicit BenchCommand(CLI::App& program) : Command(program, "bench", kDescription, kExamples) {
    app()
        .add_option("--shape", shape_, absl::StrCat("Batch, heads (/kv heads), tokens, head dim [", shape_, "]"))
        ->type_name("B,H,N,D");
    app()
        .add_option("--op", operation_, absl::StrCat("forward, backward, jvp or double_backward [", operation_, "]"))
        ->check(CLI::IsMember({"forward", "backward", "jvp", "double_backward"}))
        ->type_name("OPERATION");
    app()
        .add_option("--dtype", dtype_, absl::StrCat("fp64, fp32, bf16 or fp16 [", dtype_, "]"))
        ->check(CLI::IsMember({"fp64", "fp32", "bf16", "fp16"}))
        ->type_name("DTYPE");
    app()
        .add_option("--concurrency", concurrency_, absl::StrCat("Callers at a time [", concurrency_, "]"))
        ->check(CLI::Range(1, 1024))
        ->type_name("N");
    app()
        .add_option("--duration", duration_seconds_, absl::StrCat("How long to measure [", duration_seconds_, "]"))
        ->check(CLI::Range(1e-3, 86400.0))
        ->type_name("SECONDS");
    AddProblemFlags(app(), problem_flags_);
  }

  int Run(Console& console) override {
    const absl::StatusOr<ProblemOptions> options = ToProblemOptions(problem_flags_);
    if (!options.ok()) return console.Fail(kUsage, options.status());
    absl::StatusOr<conformance::CaseSpec> spec = ParseShape(shape_);
    if (!spec.ok()) return console.Fail(kUsage, spec.status());
    spec->operation = ParseOperation(operation_).value_or(Operation::kDoubleBackward);
    spec->dtype = ParseDType(dtype_).value_or(DType::kFloat32);
    spec->options = *options;
    if (options->layout == Layout::kTHD) {
      const absl::Status packed = Pack(*spec);
      if (!packed.ok()) return console.Fail(kUsage, packed);
    }
    if (spec->operation == Operation::kDoubleBackward) {
      spec->optional_inputs = {TensorName::kUq, TensorName::kUk, TensorName::kUv};
    } else if (spec->operation == Operation::kJvp) {
      spec->optional_inputs = {TensorName::kTq, TensorName::kTk, TensorName::kTv};
    }
    const absl::StatusOr<Computation> computation = conformance::MakeComputation(*spec);
    if (!computation.ok()) return console.Fail(kFailure, computation.status());

    const absl::StatusOr<std::unique_ptr<Backend>> backend = OpenBackend(backend_flags());
    if (!backend.ok()) return console.Fail(OpenExitCodeOf(backend.status()), backend.status());
    const absl::StatusOr<LoadResult> load = Measure(**backend, *computation);
    if (!load.ok()) return console.Fail(ExitCodeOf(load.status()), load.status());
    Report(console, *computation, *load);
    return kSuccess;
  }

 private:
  // B sequences of N tokens.
  static absl::Status Pack(conformance::CaseSpec& spec) {
    constexpr int64_t kMost = int64_t{1} << 20;
    if (spec.batch < 0 || spec.batch > kMost || spec.query_len < 0 || spec.query_len > (int64_t{1} << 40)) {
      return absl::InvalidArgumentError(
          absl::StrCat("cannot pack ", spec.batch, " sequences of ", spec.query_len, " tokens"));
    }
    for (int64_t b = 0; b <= spec.batch; ++b) spec.options.cu_seqlens_q.push_back(b * spec.query_len);
    spec.options.cu_seqlens_k = spec.options.cu_seqlens_q;
    return absl::OkStatus();
  }

  absl::StatusOr<LoadResult> Measure(Backend& backend, const Computation& computation) const {
    const AttentionProblem& problem = computation.problem();
    TensorPointers inputs;
    FLASHBOB_ASSIGN_OR_RETURN(HostTensors given, Allocate(problem, computation.inputs()));
    std::mt19937_64 random{std::random_device()()};
    for (auto& [name, buffer] : given) {
      FillNormal(problem.DTypeOf(name), {buffer.data(), buffer.span().size()}, random);
      inputs.SetInput(name, buffer.data());
    }
    std::vector<HostTensors> outputs;
    std::vector<TensorPointers> tensors;
    for (int i = 0; i < concurrency_; ++i) {
      FLASHBOB_ASSIGN_OR_RETURN(HostTensors own, Allocate(problem, computation.outputs()));
      TensorPointers pointers = inputs;
      for (auto& [name, buffer] : own) pointers.Set(name, buffer.data());
      outputs.push_back(std::move(own));
      tensors.push_back(pointers);
    }
    const auto duration = std::chrono::nanoseconds(static_cast<int64_t>(duration_seconds_ * 1e9));
    ProgressBar bar = ProgressBar::OnTerminal();
    return RunLoad(
        concurrency_, duration,
        [&](int thread) { return backend.Compute(computation, tensors[static_cast<size_t>(thread)], {}); },
        [&](double share) { bar.Update(share, "measuring"); });
  }

  void Report(Console& console, const Computation& computation, const LoadResult& load) const {
    const auto requests = static_cast<double>(load.samples.size());
    const double seconds = Milliseconds(load.elapsed) / 1e3;
    std::chrono::nanoseconds latency{0};
    std::chrono::nanoseconds queue{0};
    std::chrono::nanoseconds compute{0};
    for (const Sample& sample : load.samples) {
      latency += sample.latency;
      queue += sample.queue;
      compute += sample.compute;
    }
    const double wire_ms = Milliseconds(latency - queue - compute) / requests;
    const double queue_ms = Milliseconds(queue) / requests;
    const double compute_ms = Milliseconds(compute) / requests;
    const double p50 = Milliseconds(Percentile(load.samples, 0.5));
    const double p90 = Milliseconds(Percentile(load.samples, 0.9));
    const double p99 = Milliseconds(Percentile(load.samples, 0.99));
    const double tflops = computation.flops() * requests / seconds / 1e12;
    const double bytes = static_cast<double>(computation.input_bytes() + computation.output_bytes());
    const double gigabytes_per_second = bytes * requests / seconds / 1e9;
    console.Print({{"operation", operation_},
                   {"shape", shape_},
                   {"dtype", dtype_},
                   {"requests", load.samples.size()},
                   {"seconds", seconds},
                   {"tflops", tflops},
                   {"gigabytes_per_second", gigabytes_per_second},
                   {"p50_ms", p50},
                   {"p90_ms", p90},
                   {"p99_ms", p99},
                   {"wire_ms", wire_ms},
                   {"queue_ms", queue_ms},
                   {"compute_ms", compute_ms}},
                  absl::StrFormat("%s %s, %d at a time\n"
                                  "%d requests in %.2f s: %.4g requests/s, %.4g TFLOP/s, %.4g GB/s\n"
                                  "latency: p50 %.3f ms, p90 %.3f ms, p99 %.3f ms\n"
                                  "mean: wire %.3f ms, queue %.3f ms, compute %.3f ms\n",
                                  operation_, computation.problem().ToString(), concurrency_, load.samples.size(),
                                  seconds, requests / seconds, tflops, gigabytes_per_second, p50, p90, p99, wire_ms,
                                  queue_ms, compute_ms));
  }

  std::string shape_ = "1,4,1024,64";
  std::string operation_ = "double_backward";
  std::string dtype_ = "fp32";
  int concurrency_ = 1;
  double duration_seconds_ = 5;
  ProblemFlags problem_flags_;
};

}  // namespace

std::unique_ptr<Command> MakeBenchCommand(CLI::App& program) { return std::make_unique<BenchCommand>(program); }

}  // namespace flashbob::cli
