#include "tests/client/program.h"

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>

namespace flashbob::cli {
namespace {

[[noreturn]] void Execute(const std::vector<std::string>& arguments,
                          const std::map<std::string, std::string>& environment) {
  unsetenv("FLASHBOB_SERVER");
  for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
  std::vector<char*> argv = {const_cast<char*>(FLASHBOB_PROGRAM)};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  execv(FLASHBOB_PROGRAM, argv.data());
  _exit(127);
}

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
  const pid_t child = fork();
  if (child == 0) {
    dup2(out_file == nullptr ? out[1] : open(out_file, O_WRONLY), STDOUT_FILENO);
    dup2(err[1], STDERR_FILENO);
    Execute(arguments, environment);
  }
  close(out[1]);
  close(err[1]);
  ProgramResult result;
  ReadAll(out[0], result.out, err[0], result.err);
  result.exit_code = ExitCodeOf(child);
  return result;
}

ProgramResult RunProgramOnTerminal(const std::vector<std::string>& arguments) {
  int terminal = -1;
  const pid_t child = forkpty(&terminal, nullptr, nullptr, nullptr);
  if (child == 0) Execute(arguments, {});
  ProgramResult result;
  ReadAll(terminal, result.out, -1, result.err);
  result.exit_code = ExitCodeOf(child);
  return result;
}

}  // namespace flashbob::cli
