// flashbob run: one operation on the tensors of a file.
#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/cli/command.h"
#include "client/cli/exit_code.h"
#include "client/cli/milliseconds.h"
#include "client/cli/problem_flags.h"
#include "client/cli/progress_bar.h"
#include "client/cli/tensor_file.h"
#include "kernels/convert.h"

namespace flashbob::cli {
namespace {

constexpr char kDescription[] = "Run one operation on the tensors of a safetensors file";

constexpr char kExamples[] = R"(OPERATION  tensors in the file                       outputs
forward           q k v                              o lse
backward          q k v do [o lse]                   dq dk dv
double_backward   q k v do [o lse] any of uq uk uv   gq gk gv gdo
jvp               q k v [o lse] any of tq tk tv      to tlse; with do, or do and tdo, also tdq tdk tdv
With --layout THD also cu_seqlens_q and cu_seqlens_k, int32 or int64. Other tensors in the file are left alone.

Examples:
  flashbob run double_backward in.safetensors -o out.safetensors
  flashbob run backward in.safetensors -o out.safetensors --causal bottom-right --outputs dk,dv
  flashbob run jvp in.safetensors -o out.safetensors --window 255,0 --embedded --json)";

// The outputs of a list like "gq,gk"; INVALID_ARGUMENT where one is no tensor's name.
absl::StatusOr<TensorSet> ParseOutputs(const std::string& list) {
  TensorSet outputs;
  const std::vector<std::string> names = absl::StrSplit(list, ',');
  for (const std::string& name : names) {
    const std::optional<TensorName> output = ParseTensorName(name);
    if (!output.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat("--outputs names '", name, "', which is no tensor of attention"));
    }
    outputs.Add(*output);
  }
  return outputs;
}

class RunCommand : public Command {
 public:
  explicit RunCommand(CLI::App& program) : Command(program, "run", kDescription, kExamples) {
    app()
        .add_option("operation", operation_, "forward, backward, jvp or double_backward")
        ->required()
        ->check(CLI::IsMember({"forward", "backward", "jvp", "double_backward"}))
        ->type_name("OPERATION");
    app().add_option("input", input_, "The file with the tensors")->required()->type_name("FILE");
    app().add_option("-o,--output", output_, "The file that is written: outputs only")->required()->type_name("FILE");
    app()
        .add_option("--outputs", outputs_, "Compute and write these only, as in dq,dk [all that the operation gives]")
        ->type_name("NAME,...");
    AddProblemFlags(app(), problem_flags_);
  }

  int Run(Console& console) override {
    absl::StatusOr<ProblemOptions> options = ToProblemOptions(problem_flags_);
    if (!options.ok()) return console.Fail(kUsage, options.status());
    TensorSet wanted;
    if (outputs_.has_value()) {
      const absl::StatusOr<TensorSet> parsed = ParseOutputs(*outputs_);
      if (!parsed.ok()) return console.Fail(kUsage, parsed.status());
      wanted = *parsed;
    }
    const Operation operation = ParseOperation(operation_).value_or(Operation::kForward);
    const absl::StatusOr<safetensors::File> file = safetensors::File::Open(input_);
    if (!file.ok()) return console.Fail(kUsage, file.status());
    const absl::StatusOr<FileInputs> inputs = InputsOf(*file, operation);
    if (!inputs.ok()) return console.Fail(kUsage, inputs.status());
    options->cu_seqlens_q = inputs->cu_seqlens_q;
    options->cu_seqlens_k = inputs->cu_seqlens_k;

    const absl::StatusOr<Computation> computation = Computation::Create(operation, *options, inputs->tensors, wanted);
    if (!computation.ok()) return console.Fail(kFailure, computation.status());
    return Compute(console, *computation, *inputs);
  }

 private:
  int Compute(Console& console, const Computation& computation, const FileInputs& inputs) {
    const AttentionProblem& problem = computation.problem();
    TensorPointers pointers = inputs.pointers;
    std::map<TensorName, HostBuffer> outputs;
    absl::Status allocated = absl::OkStatus();
    computation.outputs().ForEach([&](TensorName name) {
      absl::StatusOr<HostBuffer> buffer = HostBuffer::Create(static_cast<size_t>(problem.NumBytes(name)));
      if (!buffer.ok()) return allocated.Update(buffer.status());
      pointers.Set(name, outputs.emplace(name, *std::move(buffer)).first->second.data());
    });
    if (!allocated.ok()) return console.Fail(kFailure, allocated);

    absl::StatusOr<std::unique_ptr<Backend>> backend = OpenBackend(backend_flags());
    if (!backend.ok()) return console.Fail(OpenExitCodeOf(backend.status()), backend.status());
    const auto begin = std::chrono::steady_clock::now();
    absl::StatusOr<Outcome> outcome = absl::UnknownError("not run");
    {
      ProgressBar bar = ProgressBar::OnTerminal();
      outcome = (*backend)->Compute(computation, pointers,
                                    [&bar](double fraction, const std::string& what) { bar.Update(fraction, what); });
    }
    if (!outcome.ok()) return console.Fail(ExitCodeOf(outcome.status()), outcome.status());
    const std::chrono::nanoseconds total = std::chrono::steady_clock::now() - begin;
    const absl::Status written = WriteOutputs(output_, computation, outcome->device, outputs);
    if (!written.ok()) return console.Fail(kUsage, written);
    Report(console, computation, *outcome, total, outputs, inputs.ignored);
    return kSuccess;
  }

  void Report(Console& console, const Computation& computation, const Outcome& outcome, std::chrono::nanoseconds total,
              const std::map<TensorName, HostBuffer>& outputs, const std::vector<std::string>& ignored) {
    const AttentionProblem& problem = computation.problem();
    Json tensors = Json::object();
    std::string text =
        absl::StrFormat("%s, %s, on %s: %.4g GFLOP in %.1f ms (queue %.1f, compute %.1f)\n",
                        Name(computation.operation()), problem.ToString(), outcome.device, computation.flops() / 1e9,
                        Milliseconds(total), Milliseconds(outcome.queue), Milliseconds(outcome.compute));
    for (const auto& [name, buffer] : outputs) {
      double squares = 0;
      for (double value :
           ToDoubles(problem.DTypeOf(name), buffer.span().data(), static_cast<size_t>(problem.NumElements(name)))) {
        squares += value * value;
      }
      const Shape shape = problem.ShapeOf(name);
      tensors[Name(name)] = {{"dtype", Name(problem.DTypeOf(name))}, {"shape", shape}, {"norm", std::sqrt(squares)}};
      absl::StrAppend(&text, absl::StrFormat("  %-4s %s %s, norm %.6g\n", Name(name), Name(problem.DTypeOf(name)),
                                             ToString(shape), std::sqrt(squares)));
    }
    absl::StrAppend(&text, "written to ", output_, "\n");
    if (!ignored.empty() && !console.json()) {
      console.Note(
          absl::StrCat("no inputs of ", Name(computation.operation()), ", left alone: ", absl::StrJoin(ignored, ", ")));
    }
    console.Print({{"operation", Name(computation.operation())},
                   {"device", outcome.device},
                   {"outputs", tensors},
                   {"ignored", ignored},
                   {"flops", computation.flops()},
                   {"total_ms", Milliseconds(total)},
                   {"queue_ms", Milliseconds(outcome.queue)},
                   {"compute_ms", Milliseconds(outcome.compute)},
                   {"file", output_}},
                  text);
  }

  std::string operation_;
  std::string input_;
  std::string output_;
  std::optional<std::string> outputs_;
  ProblemFlags problem_flags_;
};

}  // namespace

std::unique_ptr<Command> MakeRunCommand(CLI::App& program) { return std::make_unique<RunCommand>(program); }

}  // namespace flashbob::cli
