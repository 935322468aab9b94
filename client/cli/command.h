// Command: one subcommand of the `flashbob` program. Made before the arguments are parsed, run at most once after.
#ifndef FLASHBOB_CLIENT_CLI_COMMAND_H_
#define FLASHBOB_CLIENT_CLI_COMMAND_H_

#include <CLI/CLI.hpp>
#include <memory>

#include "client/cli/backend.h"
#include "client/cli/console.h"

namespace flashbob::cli {

class Command {
 public:
  virtual ~Command() = default;
  // Whether the arguments name this command.
  bool chosen() const { return app_->parsed(); }
  // Whether --json is given.
  bool json() const { return backend_flags_.json; }
  // Does the work and returns the exit code.
  virtual int Run(Console& console) = 0;

 protected:
  // Adds the subcommand with the flags that all have.
  Command(CLI::App& program, const char* name, const char* description, const char* examples)
      : app_(program.add_subcommand(name, description)) {
    app_->footer(examples);
    AddBackendFlags(*app_, backend_flags_);
  }

  CLI::App& app() { return *app_; }
  const BackendFlags& backend_flags() const { return backend_flags_; }

 private:
  CLI::App* app_;  // the program's
  BackendFlags backend_flags_;
};

// The commands: see the help of each.
std::unique_ptr<Command> MakeRunCommand(CLI::App& program);
std::unique_ptr<Command> MakeCheckCommand(CLI::App& program);
std::unique_ptr<Command> MakeBenchCommand(CLI::App& program);
std::unique_ptr<Command> MakeInfoCommand(CLI::App& program);
std::unique_ptr<Command> MakeHealthCommand(CLI::App& program);

}  // namespace flashbob::cli

#endif  // FLASHBOB_CLIENT_CLI_COMMAND_H_
