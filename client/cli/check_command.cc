// flashbob check: random problems, computed by the backend and compared with the fp64 reference in this process.
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli/check.h"
#include "client/cli/command.h"
#include "client/cli/exit_code.h"
#include "client/cli/progress_bar.h"
#include "kernels/conformance/cases.h"

namespace flashbob::cli {
namespace {

using conformance::ConformanceCase;

constexpr char kDescription[] =
    "Compute random problems over every operation, dtype and mask kind, and compare with the fp64 reference";

constexpr char kExamples[] =
    R"(The table has, for each output of each operation and dtype, the largest error in units of its bar. Errors are norms
relative to the reference's (README.md). Exit code 1 where an output is over its bar. An infinite error (null in JSON)
means NaN or infinite values where the reference has none, or none where it has.

Examples:
  flashbob check
  flashbob check --server gpu-node:50051 --dtype bf16 --op double_backward --verbose
  flashbob check --embedded --full --seed 7 --json)";

class CheckCommand : public Command {
 public:
  explicit CheckCommand(CLI::App& program) : Command(program, "check", kDescription, kExamples) {
    app()
        .add_option("--op", operation_, "Only this operation: forward, backward, jvp or double_backward")
        ->check(CLI::IsMember({"forward", "backward", "jvp", "double_backward"}))
        ->type_name("OPERATION");
    app()
        .add_option("--dtype", dtype_, "Only this type: fp64, fp32, bf16 or fp16")
        ->check(CLI::IsMember({"fp64", "fp32", "bf16", "fp16"}))
        ->type_name("DTYPE");
    app().add_option("--seed", seed_, "Of problems and data [drawn, and printed]")->type_name("N");
    app().add_flag("--full", full_, "The corners, too: minutes instead of seconds");
    app().add_flag("-v,--verbose", verbose_, "Print a line for each case");
  }

  int Run(Console& console) override {
    const absl::StatusOr<std::unique_ptr<Backend>> backend = OpenBackend(backend_flags());
    if (!backend.ok()) return console.Fail(OpenExitCodeOf(backend.status()), backend.status());
    const uint64_t seed = seed_.has_value() ? *seed_ : std::random_device()();
    absl::StatusOr<std::vector<CheckedCase>> checked = absl::UnknownError("not run");
    {
      ProgressBar bar = ProgressBar::OnTerminal();
      checked = RunCheck(**backend, Cases(seed),
                         [&bar](double fraction, const std::string& what) { bar.Update(fraction, what); });
    }
    if (!checked.ok()) return console.Fail(ExitCodeOf(checked.status()), checked.status());
    Report(console, *checked, seed);
    return AllOk(*checked) ? kSuccess : kFailure;
  }

 private:
  std::vector<ConformanceCase> Cases(uint64_t seed) const {
    std::vector<ConformanceCase> cases = conformance::QuickCases(seed);
    if (full_) {
      for (ConformanceCase& corner : conformance::FullCases(seed)) cases.push_back(std::move(corner));
    }
    std::erase_if(cases, [&](const ConformanceCase& c) {
      return (operation_.has_value() && *operation_ != Name(c.spec().operation)) ||
             (dtype_.has_value() && *dtype_ != Name(c.spec().dtype));
    });
    return cases;
  }

  void Report(Console& console, const std::vector<CheckedCase>& checked, uint64_t seed) const {
    std::string text = ToTable(checked);
    int failed = 0;
    for (const CheckedCase& each : checked) {
      if (!each.report.ok) ++failed;
      if (!each.report.ok || verbose_) absl::StrAppend(&text, ToText(each));
    }
    absl::StrAppend(&text, checked.size(), " cases of seed ", seed, ": ",
                    failed == 0 ? std::string("all within their bars") : absl::StrCat(failed, " failed"), "\n");
    if (console.json() && failed > 0) console.Note(absl::StrCat("seed ", seed));
    console.Print(ToJson(checked), text);
  }

  std::optional<std::string> operation_;
  std::optional<std::string> dtype_;
  std::optional<uint64_t> seed_;
  bool full_ = false;
  bool verbose_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeCheckCommand(CLI::App& program) { return std::make_unique<CheckCommand>(program); }

}  // namespace flashbob::cli
