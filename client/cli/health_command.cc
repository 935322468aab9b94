// flashbob health: whether the server serves, by the standard health service, as its exit code says.
#include "client/cli/command.h"
#include "client/cli/exit_code.h"

namespace flashbob::cli {
namespace {

constexpr char kDescription[] = "Ask once whether the server serves; exit code 0 where it does, 3 where it does not";

constexpr char kExamples[] = R"(For probes of containers and scripts. The health service asks for no token.

Examples:
  flashbob health
  flashbob health --server unix:/run/flashbob/flashbob.sock --timeout 4)";

class HealthCommand : public Command {
 public:
  explicit HealthCommand(CLI::App& program) : Command(program, "health", kDescription, kExamples) {}

  int Run(Console& console) override {
    const absl::StatusOr<std::unique_ptr<Backend>> backend = OpenBackend(backend_flags());
    if (!backend.ok()) return console.Fail(OpenExitCodeOf(backend.status()), backend.status());
    const absl::Status health = (*backend)->Health();
    if (!health.ok()) return console.Fail(ExitCodeOf(health), health);
    console.Print({{"status", "serving"}}, "serving\n");
    return kSuccess;
  }
};

}  // namespace

std::unique_ptr<Command> MakeHealthCommand(CLI::App& program) { return std::make_unique<HealthCommand>(program); }

}  // namespace flashbob::cli
