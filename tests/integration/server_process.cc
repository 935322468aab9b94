#include "tests/integration/server_process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <thread>
#include <utility>

extern char** environ;

namespace flashbob::integration {
namespace {

// Looks every few milliseconds whether `done`; false where it is not in time.
bool Poll(std::chrono::milliseconds timeout, const std::function<bool()>& done) {
  const auto until = std::chrono::steady_clock::now() + timeout;
  while (!done()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

std::string ReadFile(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

}  // namespace

std::string OwnLoopback() {
  return "127." + std::to_string(64 + getpid() / 250 % 128) + "." + std::to_string(getpid() % 250) + ".1";
}

ServerProcess ServerProcess::Serve(const std::vector<std::string>& arguments) {
  std::vector<std::string> all;
  for (const char* flag : {"--listen", "--metrics-listen"}) {
    if (std::find(arguments.begin(), arguments.end(), flag) == arguments.end()) {
      all.insert(all.end(), {flag, "127.0.0.1:0"});
    }
  }
  all.insert(all.end(), arguments.begin(), arguments.end());
  ServerProcess process = Start(all);
  Poll(std::chrono::seconds(60), [&] {
    std::ifstream(process.directory_ + "/port") >> process.port_;
    return process.port_ != 0 || process.Wait(std::chrono::milliseconds(0)).has_value();
  });
  return process;
}

ServerProcess ServerProcess::Start(const std::vector<std::string>& arguments) {
  ServerProcess process;
  process.Spawn(arguments);
  return process;
}

ServerProcess::ServerProcess(ServerProcess&& other) noexcept
    : directory_(std::exchange(other.directory_, "")),
      keep_(other.keep_),
      pid_(std::exchange(other.pid_, -1)),
      port_(std::exchange(other.port_, 0)) {}

ServerProcess::~ServerProcess() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  if (!directory_.empty() && !keep_) std::filesystem::remove_all(directory_);
}

int ServerProcess::metrics_port() const {
  const std::string log = err();
  const std::string key = "metrics_port=";
  const size_t at = log.find(key);
  return at == std::string::npos ? 0 : std::atoi(log.c_str() + at + key.size());
}

void ServerProcess::Signal(int signal) const { kill(pid_, signal); }

std::optional<int> ServerProcess::Wait(std::chrono::milliseconds timeout) {
  std::optional<int> code;
  Poll(timeout, [&] {
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) != pid_) return false;
    code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    pid_ = -1;
    return true;
  });
  return code;
}

std::string ServerProcess::out() const { return ReadFile(directory_ + "/out"); }

std::string ServerProcess::err() const { return ReadFile(directory_ + "/err"); }

std::string ServerProcess::KeepErr() {
  keep_ = true;
  return directory_ + "/err";
}

void ServerProcess::Spawn(const std::vector<std::string>& arguments) {
  directory_ = (std::filesystem::temp_directory_path() / "flashbob-server-XXXXXX").string();
  mkdtemp(directory_.data());
  std::vector<std::string> all = {FLASHBOB_SERVER_PROGRAM};
  all.insert(all.end(), arguments.begin(), arguments.end());
  all.insert(all.end(), {"--port-file", directory_ + "/port"});
  std::vector<char*> argv;
  for (std::string& argument : all) argv.push_back(argument.data());
  argv.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 1, (directory_ + "/out").c_str(), O_CREAT | O_WRONLY, 0600);
  posix_spawn_file_actions_addopen(&actions, 2, (directory_ + "/err").c_str(), O_CREAT | O_WRONLY, 0600);
  if (posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ) != 0) pid_ = -1;
  posix_spawn_file_actions_destroy(&actions);
}

}  // namespace flashbob::integration
