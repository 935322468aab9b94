#include "tests/client/program.h"

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>

namespace flashbob::cli {
namespace {

// What execve takes. Made before the child is: other threads of the test may hold the allocator's locks while it is
// forked, and nobody would let them go in the child.
class Command {
 public:
  Command(const std::vector<std::string>& arguments, const std::map<std::string, std::string>& environment)
      : arguments_(arguments) {
    arguments_.insert(arguments_.begin(), FLASHBOB_PROGRAM);
    for (char** variable = environ; *variable != nullptr; ++variable) {
      const std::string name(*variable, std::strcspn(*variable, "="));
      if (name != "FLASHBOB_SERVER" && !environment.contains(name)) environment_.emplace_back(*variable);
    }
    for (const auto& [name, value] : environment) environment_.push_back(name + "=" + value);
    for (std::string& argument : arguments_) argv_.push_back(argument.data());
    for (std::string& variable : environment_) envp_.push_back(variable.data());
    argv_.push_back(nullptr);
    envp_.push_back(nullptr);
  }
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  char* const* argv() const { return argv_.data(); }
  char* const* envp() const { return envp_.data(); }

 private:
  std::vector<std::string> arguments_;
  std::vector<std::string> environment_;
  std::vector<char*> argv_;
  std::vector<char*> envp_;
};

// Reads both until both have ended.
void ReadAll(int out_descriptor, std::string& out, int err_descriptor, std::string& err) {
  std::array<pollfd, 2> polled = {{{out_descriptor, POLLIN, 0}, {err_descriptor, POLLIN, 0}}};
  std::array<std::string*, 2> texts = {&out, &err};
  while (polled[0].fd >= 0 || polled[1].fd >= 0) {
    poll(polled.data(), polled.size(), -1);
    for (size_t i = 0; i < polled.size(); ++i) {
      if (polled[i].fd < 0 || polled[i].revents == 0) continue;
      char buffer[4096];
      const ssize_t got = read(polled[i].fd, buffer, sizeof(buffer));
      // A terminal whose other side is closed gives an error instead of an end.
      if (got <= 0) {
        close(polled[i].fd);
        polled[i].fd = -1;
      } else {
        texts[i]->append(buffer, static_cast<size_t>(got));
      }
    }
  }
}

int ExitCodeOf(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace

ProgramResult RunProgram(const std::vector<std::string>& arguments,
                         const std::map<std::string, std::string>& environment, const char* out_file) {
  int out[2];
  int err[2];
  if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) return {};
  const Command command(arguments, environment);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (out_file == nullptr) {
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  } else {
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, out_file, O_WRONLY, 0);
  }
  posix_spawn_file_actions_adddup2(&actions, err[1], STDERR_FILENO);
  pid_t child = -1;
  const int failed = posix_spawn(&child, FLASHBOB_PROGRAM, &actions, nullptr, command.argv(), command.envp());
  posix_spawn_file_actions_destroy(&actions);
  close(out[1]);
  close(err[1]);
  ProgramResult result;
  ReadAll(out[0], result.out, err[0], result.err);
  if (failed == 0) result.exit_code = ExitCodeOf(child);
  return result;
}

ProgramResult RunProgramOnTerminal(const std::vector<std::string>& arguments) {
  const Command command(arguments, {});
  int terminal = -1;
  const pid_t child = forkpty(&terminal, nullptr, nullptr, nullptr);
  if (child == 0) {
    execve(FLASHBOB_PROGRAM, command.argv(), command.envp());
    _exit(127);
  }
  ProgramResult result;
  ReadAll(terminal, result.out, -1, result.err);
  result.exit_code = ExitCodeOf(child);
  return result;
}

}  // namespace flashbob::cli
