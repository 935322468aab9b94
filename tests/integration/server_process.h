// ServerProcess: the real flashbob-server as a child process.
#ifndef FLASHBOB_TESTS_INTEGRATION_SERVER_PROCESS_H_
#define FLASHBOB_TESTS_INTEGRATION_SERVER_PROCESS_H_

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace flashbob::integration {

// A loopback address that no other test's process listens on, so that a port of it that was given up can be had again.
std::string OwnLoopback();

class ServerProcess {
 public:
  // Starts build/flashbob-server on free ports, or where --listen and --metrics-listen say, with these arguments
  // besides, and waits until it serves; `serving()` says whether it does.
  static ServerProcess Serve(const std::vector<std::string>& arguments = {});
  // Starts it with these arguments and waits for nothing.
  static ServerProcess Start(const std::vector<std::string>& arguments);
  // Kills it where it still runs.
  ~ServerProcess();
  ServerProcess(ServerProcess&& other) noexcept;
  ServerProcess& operator=(ServerProcess&&) = delete;

  bool serving() const { return port_ != 0; }
  int port() const { return port_; }
  // As its log says; 0 where that leaves out what is no error.
  int metrics_port() const;
  pid_t pid() const { return pid_; }
  void Signal(int signal) const;
  // Its exit code; 128 + signal where one killed it; nothing where it still runs after `timeout`.
  std::optional<int> Wait(std::chrono::milliseconds timeout);
  // What it wrote so far.
  std::string out() const;
  std::string err() const;
  // Leaves what it wrote where it is once this is gone; the file with what err() gives.
  std::string KeepErr();

 private:
  ServerProcess() = default;
  void Spawn(const std::vector<std::string>& arguments);

  std::string directory_;
  bool keep_ = false;  // the directory
  pid_t pid_ = -1;
  int port_ = 0;
};

}  // namespace flashbob::integration

#endif  // FLASHBOB_TESTS_INTEGRATION_SERVER_PROCESS_H_
