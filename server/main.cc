// flashbob-server: reads its configuration, starts a Server on every GPU (or on the CPU, where there is none), serves
// until it is told to stop.
#include <google/protobuf/stubs/logging.h>
#include <malloc.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status_macros.h"
#include "kernels/devices/devices.h"
#include "server/base/grpc_log.h"
#include "server/config/command_line.h"
#include "server/server.h"
#include "server/service/callback_threads.h"
#include "server/stop_signals.h"
#include "server/version.h"

namespace flashbob::server {
namespace {

constexpr int kExitFailed = 1;
// gRPC itself never starts fewer.
constexpr int kCallbackThreadsForFew = 2;
// Past the grace period, for slices that still run and for memory to be freed. A device that hangs does not keep the
// process from its end.
constexpr Duration kForTheDevice = std::chrono::seconds(5);

// gRPC allocates and frees a buffer for each megabyte that it receives; by default glibc maps and unmaps memory for
// each, and page faults halve the rate. Nor may each of its threads keep free memory to itself. README.md here has the
// figures.
void TuneMalloc() {
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 256 << 20);
  mallopt(M_TOP_PAD, 16 << 20);
  mallopt(M_ARENA_MAX, 1);
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

absl::StatusOr<std::vector<std::unique_ptr<Engine>>> CreateEngines(const DeviceChoice& devices, int cpu_threads,
                                                                   EventLog& log) {
  std::vector<std::unique_ptr<Engine>> engines;
  for (const std::string& name : devices.names) {
    FLASHBOB_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, CreateEngine(name, cpu_threads));
    const DeviceInfo& info = engine->device();
    log.Write(LogLevel::kInfo, "device",
              {{"name", info.name},
               {"model", info.model},
               {"compute_units", int64_t{info.compute_units}},
               {"memory_bytes", info.memory_bytes},
               {"usable_bytes", info.usable_bytes}});
    engines.push_back(std::move(engine));
  }
  return engines;
}

absl::StatusOr<std::unique_ptr<Server>> StartServer(const ServerOptions& options, const DeviceChoice& devices,
                                                    const Clock& clock, EventLog& log,
                                                    CallbackThreads* callback_threads,
                                                    std::function<void(const absl::Status&)> on_device_lost) {
  Server::Environment environment;
  FLASHBOB_ASSIGN_OR_RETURN(environment.engines, CreateEngines(devices, options.threads, log));
  environment.clock = &clock;
  environment.log = &log;
  if (options.grpc_threads == 0) environment.callback_threads = callback_threads;
  environment.on_device_lost = std::move(on_device_lost);
  return Server::Start(options, std::move(environment));
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
  // It writes lines of its own to stderr, in the middle of the log, whenever a client sends a text that is no UTF-8;
  // the call says what is wrong, to its client and in the log.
  google::protobuf::SetLogHandler(nullptr);

  EventLog log(options.log_level, options.log_format);
  const SteadyClock clock;
  const GrpcLog grpc_log(log, clock);
  const absl::StatusOr<DeviceChoice> devices = ChooseDevices(options.devices, FindDevices());
  if (!devices.ok()) {
    log.Write(LogLevel::kError, "cannot start",
              {{"error", absl::StrCat("devices: ", std::string(devices.status().message()))}});
    return kExitBadConfiguration;
  }
  if (!devices->note.empty()) {
    log.Write(LogLevel::kInfo, "devices", {{"chosen", absl::StrJoin(devices->names, ",")}, {"why", devices->note}});
  }
  // Goes after the server.
  absl::StatusOr<std::unique_ptr<CallbackThreads>> callback_threads =
      CallbackThreads::Limit(options.grpc_threads == 0 ? kCallbackThreadsForFew : options.grpc_threads);
  if (!callback_threads.ok()) {
    const std::string error = absl::StrCat("grpc_threads: ", std::string(callback_threads.status().message()));
    if (options.grpc_threads > 0) {
      log.Write(LogLevel::kError, "cannot start", {{"error", error}});
      return kExitFailed;
    }
    log.Write(LogLevel::kWarning, "all of gRPC's threads serve", {{"why", error}});
  }
  std::atomic<bool> device_lost = false;
  absl::StatusOr<std::unique_ptr<Server>> server =
      StartServer(options, *devices, clock, log, callback_threads.ok() ? callback_threads->get() : nullptr,
                  [&](const absl::Status&) {
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
             {"devices", absl::StrJoin(devices->names, ",")},
             {"host_memory_bytes", options.host_memory_bytes}});
  // After the line: who waits for the file finds all that the line says.
  if (!options.port_file.empty()) {
    const absl::Status written = WritePortFile(options.port_file, (*server)->port());
    if (!written.ok()) {
      log.Write(LogLevel::kError, "cannot start", {{"error", std::string(written.message())}});
      return kExitFailed;
    }
  }

  signals.Wait();
  log.Write(LogLevel::kInfo, "draining", {{"grace_seconds", options.grace_seconds}});
  std::atomic<bool> stopped = false;
  std::thread stop([&] {
    (*server)->Drain(FromSeconds(options.grace_seconds));
    server->reset();
    if (callback_threads.ok()) callback_threads->reset();
    stopped = true;
    signals.Wake();
  });
  const TimePoint end = clock.Now() + FromSeconds(options.grace_seconds) + kForTheDevice;
  while (!stopped) {
    const std::optional<StopSignals::Event> event = signals.WaitFor(end - clock.Now());
    if (event == StopSignals::Event::kStop) {
      log.Write(LogLevel::kWarning, "told to stop a second time: exiting at once");
      std::_Exit(kExitFailed);
    }
    if (!event.has_value() && !stopped) {
      log.Write(LogLevel::kError, "a device does not end its work: exiting without it");
      std::_Exit(kExitFailed);
    }
  }
  stop.join();
  log.Write(LogLevel::kInfo, "stopped");
  return device_lost ? kExitFailed : 0;
}

}  // namespace
}  // namespace flashbob::server

int main(int argc, char** argv) { return flashbob::server::Main(argc, argv); }
