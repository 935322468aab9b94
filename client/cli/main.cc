// The `flashbob` program: attention's derivatives from the command line.
#include <malloc.h>

#include <algorithm>
#include <iostream>
#include <string_view>
#include <vector>

#include "client/cli/command.h"
#include "client/cli/exit_code.h"

namespace flashbob::cli {
namespace {

constexpr char kDescription[] =
    "Computes exact derivatives of softmax attention on a FlashBoB server, or in this process with --embedded.";

constexpr char kFooter[] = R"(Examples:
  flashbob run double_backward in.safetensors -o out.safetensors --causal top-left
  flashbob check --server gpu-node:50051
  flashbob bench --shape 1,16,4096,64 --op double_backward --dtype bf16 --duration 10
  flashbob info --json

`flashbob COMMAND --help` has more of them.

Environment: FLASHBOB_SERVER, the server where --server is not given; FLASHBOB_TOKEN, a token that names the tenant;
FLASHBOB_TLS_CA, the authorities' certificates that a server over TLS is trusted by.

Exit codes: 0 success; 1 the computation was refused or failed, or an error is over its bar; 2 wrong usage, or files
or standard output that cannot be used;
3 no server was reached.)";

// Arguments that make no sense still say how their error is to be printed.
bool AsksForJson(int argc, char** argv) {
  return std::any_of(argv, argv + argc, [](const char* argument) { return std::string_view(argument) == "--json"; });
}

int Main(int argc, char** argv) {
  // gRPC allocates and frees megabytes at a time; given back to the system and mapped again each time, they cost more
  // than the copies into them. Nor may each of its threads keep free memory to itself.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  mallopt(M_TOP_PAD, 64 << 20);
  mallopt(M_ARENA_MAX, 1);

  CLI::App program(kDescription, "flashbob");
  program.footer(kFooter);
  program.set_version_flag("--version", FLASHBOB_VERSION, "Print the version and exit");
  program.require_subcommand(1);
  std::vector<std::unique_ptr<Command>> commands;
  commands.push_back(MakeRunCommand(program));
  commands.push_back(MakeCheckCommand(program));
  commands.push_back(MakeBenchCommand(program));
  commands.push_back(MakeInfoCommand(program));
  commands.push_back(MakeHealthCommand(program));
  try {
    program.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (program.exit(error) == 0) return kSuccess;  // help and version are "errors" of code 0
    if (AsksForJson(argc, argv))
      Console(std::cout, std::cerr, true).Fail(kUsage, absl::InvalidArgumentError(error.what()));
    return kUsage;
  }
  for (const std::unique_ptr<Command>& command : commands) {
    if (!command->chosen()) continue;
    Console console(std::cout, std::cerr, command->json());
    const int exit_code = command->Run(console);
    if (std::cout.flush()) return exit_code;
    console.Note("standard output cannot be written: the results are lost");
    return exit_code == kSuccess ? kUsage : exit_code;
  }
  return kUsage;
}

}  // namespace
}  // namespace flashbob::cli

int main(int argc, char** argv) { return flashbob::cli::Main(argc, argv); }
