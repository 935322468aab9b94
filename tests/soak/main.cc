// soak: a real server under a mixed load for minutes, and whether anything of it stays.
//
// Exit code 1 where an answer was wrong, a call ended as no promise allows or not at all, memory grew, or a counter did
// not come back to its start.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/sha.h>
#include <sys/socket.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "tests/integration/server_process.h"
#include "tests/soak/catalogue.h"
#include "tests/soak/tally.h"
#include "tests/soak/visitor.h"
#include "tests/soak/watch.h"

namespace flashbob::soak {
namespace {

using integration::ServerProcess;
using std::chrono::seconds;
using std::chrono::steady_clock;

// A visitor that is at one thing for so long hangs: each call has a time limit far below.
constexpr double kHangSeconds = 400;

struct TenantSettings {
  const char* name;
  const char* settings;
};
// Two that compete, and two whose quotas are met often.
constexpr TenantSettings kTenants[] = {
    {"research", "weight: 3"},
    {"batch", "priority: -10"},
    {"few", "max_in_flight: 6"},
    {"tight", "max_bytes: 48000000"},
};

std::string TokenOf(const TenantSettings& tenant) { return absl::StrCat(tenant.name, "-token"); }

std::string TenantsFile() {
  const std::string path =
      absl::StrCat(std::filesystem::temp_directory_path().string(), "/flashbob-soak-", getpid(), ".textproto");
  std::ofstream file(path);
  for (const TenantSettings& tenant : kTenants) {
    const std::string token = TokenOf(tenant);
    unsigned char hash[SHA256_DIGEST_LENGTH];
    SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(), hash);
    const std::string hex = absl::BytesToHexString(std::string(reinterpret_cast<char*>(hash), sizeof(hash)));
    file << "tenants { name: \"" << tenant.name << "\" token_sha256: \"" << hex << "\" " << tenant.settings << " }\n";
  }
  return path;
}

// A port that nobody listens on now.
int FreePort() {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  bind(listener, reinterpret_cast<sockaddr*>(&address), size);
  getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
  close(listener);
  return ntohs(address.sin_port);
}

struct Plan {
  double minutes = 1;
  int clients = 80;
  uint64_t seed = 0;
};

// What the server said last, but for the calls that it turned away or that failed, and the file that has all of it.
void TellWhatItSaid(ServerProcess& server) {
  constexpr size_t kLines = 40;
  std::deque<std::string> last;
  std::istringstream said(server.err());
  for (std::string line; std::getline(said, line);) {
    if (line.find(" warning call ") != std::string::npos) continue;
    last.push_back(line);
    if (last.size() > kLines) last.pop_front();
  }
  std::printf("the server's log is %s; its last lines but those of calls:\n", server.KeepErr().c_str());
  for (const std::string& line : last) std::printf("  %s\n", line.c_str());
  std::fflush(stdout);
}

// Lets the visitors in, and waits until their time is over. Ends the process where one hangs.
void Visit(const Plan& plan, const Surroundings& around, std::atomic<bool>& stopping, Watch& watch,
           ServerProcess& server) {
  std::vector<std::unique_ptr<Visitor>> visitors;
  std::vector<std::thread> threads;
  for (int i = 0; i < plan.clients; ++i) {
    visitors.push_back(std::make_unique<Visitor>(around, TokenOf(kTenants[i % std::size(kTenants)]),
                                                 plan.seed + static_cast<uint64_t>(i)));
    threads.emplace_back([visitor = visitors.back().get()] { visitor->Run(); });
  }
  const auto began = steady_clock::now();
  const std::chrono::duration<double> time(60 * plan.minutes);
  // Until caches and connections are what they will be: a fifth of the time, a minute at least where there is one.
  const std::chrono::duration<double> warm_up(std::max(time.count() / 5, std::min(60.0, time.count() / 2)));
  std::string hang;
  auto report = began;
  while (steady_clock::now() - began < time && hang.empty()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(250));
    watch.Sample(steady_clock::now() - began > warm_up);
    for (const auto& visitor : visitors) {
      if (visitor->at_it().count() > kHangSeconds) hang = absl::StrCat("a client hangs at: ", visitor->action());
    }
    if (steady_clock::now() - report < seconds(60)) continue;
    report = steady_clock::now();
    std::printf("%lld actions, %lld faults\n", static_cast<long long>(around.tally.actions()),
                static_cast<long long>(around.tally.faults()));
    std::fflush(stdout);
  }
  stopping = true;
  if (hang.empty()) {
    for (std::thread& thread : threads) thread.join();
    return;
  }
  std::printf("FAILED: %s\n", hang.c_str());
  TellWhatItSaid(server);
  server.Signal(SIGKILL);
  std::_Exit(1);  // its thread never ends
}

int Soak(const Plan& plan) {
  std::printf("soak of %.1f minutes, %d clients, --seed %llu\n", plan.minutes, plan.clients,
              static_cast<unsigned long long>(plan.seed));
  const Catalogue catalogue(plan.seed);
  std::printf("%zu problems computed in process\n", catalogue.size());
  std::fflush(stdout);
  const std::string tenants_file = TenantsFile();
  const int metrics_port = FreePort();
  // Little memory and a short queue: requests wait for both, and some are turned away.
  ServerProcess server = ServerProcess::Serve(
      {"--devices", "cpu", "--host-memory-bytes", "256MiB", "--store-memory-bytes", "96MiB", "--max-queued-requests",
       "48", "--idle-upload-seconds", "10", "--log-level", "warning", "--tenants-file", tenants_file,
       "--metrics-listen", absl::StrCat("127.0.0.1:", metrics_port)});
  if (!server.serving()) {
    std::fprintf(stderr, "%s", server.err().c_str());
    return 1;
  }
  Watch watch(server, metrics_port);
  Tally tally;
  std::atomic<bool> stopping = false;
  const auto began = steady_clock::now();
  Visit(plan, {catalogue, tally, stopping, server.port()}, stopping, watch, server);
  const double took = std::chrono::duration<double>(steady_clock::now() - began).count();

  std::vector<std::string> wrong;
  // The leases of tensors that nobody deleted end within 300 s of use; those of calls that failed are shorter.
  wrong.push_back(watch.BackAtTheStart(seconds(60)));
  wrong.push_back(watch.Growth());
  if (tally.faults() > 0) wrong.push_back(absl::StrCat(tally.faults(), " calls ended as they may not"));
  std::printf("%.0f s, %lld actions\n%s%s", took, static_cast<long long>(tally.actions()), tally.ToString().c_str(),
              watch.ToString().c_str());
  server.Signal(SIGTERM);
  const std::optional<int> code = server.Wait(seconds(60));
  if (code != 0) wrong.push_back(absl::StrCat("the server ended with ", code.value_or(-1)));
  std::filesystem::remove(tenants_file);
  int failures = 0;
  for (const std::string& what : wrong) {
    if (what.empty()) continue;
    std::printf("FAILED: %s\n", what.c_str());
    ++failures;
  }
  if (failures > 0) TellWhatItSaid(server);
  if (failures == 0) std::printf("soak: nothing hung, leaked or was wrong\n");
  return failures == 0 ? 0 : 1;
}

int Main(int argc, char** argv) {
  Plan plan;
  plan.seed = std::random_device()();
  CLI::App app("Keeps a flashbob-server under a mixed load and checks that nothing of it stays.");
  app.add_option("--minutes", plan.minutes, "How long")->check(CLI::Range(0.1, 1e5))->capture_default_str();
  app.add_option("--clients", plan.clients, "At once")->check(CLI::Range(1, 1000))->capture_default_str();
  app.add_option("--seed", plan.seed, "Of all that is random; a fresh one where it is left out");
  CLI11_PARSE(app, argc, argv);
  return Soak(plan);
}

}  // namespace
}  // namespace flashbob::soak

int main(int argc, char** argv) { return flashbob::soak::Main(argc, argv); }
