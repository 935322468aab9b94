// flashbob-server: reads its configuration, starts a Server on the CPU engine, serves until it is told to stop.
#include <malloc.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/cpu/cpu_engine.h"
#include "server/config/command_line.h"
#include "server/server.h"
#include "server/stop_signals.h"
#include "server/version.h"

namespace flashbob::server {
namespace {

constexpr int kExitFailed = 1;

// gRPC allocates and frees a buffer for each megabyte that it receives; by default glibc maps and unmaps memory for
// each, and page faults halve the rate.
void TuneMalloc() {
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 256 << 20);
  mallopt(M_TOP_PAD, 16 << 20);
}

absl::Status WritePortFile(const std::string& path, int port) {
  // Renamed into place, so that whoever waits for it never reads half a number.
  const std::string partial = path + ".partial";
  std::ofstream file(partial);
  file << port << "\n";
  file.close();
  if (!file || std::rename(partial.c_str(), path.c_str()) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot write port file ", path));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Server>> StartServer(const ServerOptions& options, const Clock& clock, EventLog& log,
                                                    std::function<void(const absl::Status&)> on_device_lost) {
  cpu::CpuEngineOptions engine_options;
  engine_options.threads = options.threads;
  Server::Environment environment;
  environment.engines.push_back(cpu::CreateCpuEngine(engine_options));
  environment.clock = &clock;
  environment.log = &log;
  environment.on_device_lost = std::move(on_device_lost);
  FLASHBOB_ASSIGN_OR_RETURN(std::unique_ptr<Server> server, Server::Start(options, std::move(environment)));
  if (!options.port_file.empty()) FLASHBOB_RETURN_IF_ERROR(WritePortFile(options.port_file, server->port()));
  return server;
}

int Main(int argc, char** argv) {
  const CommandLine command_line = ParseCommandLine(argc, argv, kVersion);
  if (!command_line.options.has_value()) {
    std::fputs(command_line.text.c_str(), command_line.exit_code == 0 ? stdout : stderr);
    return command_line.exit_code;
  }
  const ServerOptions& options = *command_line.options;
  TuneMalloc();
  StopSignals signals;
  std::signal(SIGPIPE, SIG_IGN);

  EventLog log(options.log_level, options.log_format);
  const SteadyClock clock;
  std::atomic<bool> device_lost = false;
  absl::StatusOr<std::unique_ptr<Server>> server = StartServer(options, clock, log, [&](const absl::Status&) {
    device_lost = true;
    signals.Wake();
  });
  if (!server.ok()) {
    log.Write(LogLevel::kError, "cannot start", {{"error", std::string(server.status().message())}});
    return kExitFailed;
  }
  log.Write(LogLevel::kInfo, "serving",
            {{"version", std::string(kVersion)},
             {"listen", options.listen},
             {"port", int64_t{(*server)->port()}},
             {"metrics_port", int64_t{(*server)->metrics_port()}},
             {"host_memory_bytes", options.host_memory_bytes}});

  signals.Wait();
  log.Write(LogLevel::kInfo, "draining", {{"grace_seconds", options.grace_seconds}});
  std::atomic<bool> drained = false;
  std::thread drain([&] {
    (*server)->Drain(FromSeconds(options.grace_seconds));
    drained = true;
    signals.Wake();
  });
  while (!drained) {
    if (signals.Wait() == StopSignals::Event::kStop) {
      log.Write(LogLevel::kWarning, "told to stop a second time: exiting at once");
      std::_Exit(kExitFailed);
    }
  }
  drain.join();
  server->reset();
  log.Write(LogLevel::kInfo, "stopped");
  return device_lost ? kExitFailed : 0;
}

}  // namespace
}  // namespace flashbob::server

int main(int argc, char** argv) { return flashbob::server::Main(argc, argv); }
