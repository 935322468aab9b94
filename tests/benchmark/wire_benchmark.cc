// What the wire costs, seen by a client of a running server: latency after pauses, many small clients, memory.
//
//   wire_benchmark idle   --server HOST:PORT              a small request after pauses of 0.5 to 5 s
//   wire_benchmark small  --server HOST:PORT --clients 64 closed loop, each client on a connection of its own
//   wire_benchmark memory --server HOST:PORT --pid SERVER 1 GiB of tensors up and 1 GiB down, once; peak memory
//
// Prints one JSON object; README.md here has the bars.
#include <flashbob/client.h>
#include <malloc.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cmath>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <thread>

namespace flashbob {
namespace {

using client::Client;
using client::Operation;
using client::Request;
using client::TensorView;
using Milliseconds = std::chrono::duration<double, std::milli>;
using Clock = std::chrono::steady_clock;

struct Flags {
  std::string server = "127.0.0.1:50051";
  double seconds = 60;
  int clients = 64;
  int server_pid = 0;
};

Client Connect(const std::string& server) {
  absl::StatusOr<Client> client = Client::Connect({.server = server});
  if (!client.ok()) throw std::runtime_error(client.status().ToString());
  return *std::move(client);
}

Request Small(const std::vector<float>& values) {
  Request request;
  request.operation = Operation::kForward;
  for (const char* name : {"q", "k", "v"}) {
    request.inputs.push_back({name, TensorView(std::span<const float>(values), {1, 4, 128, 64})});
  }
  return request;
}

double TimeOf(Client& client, const Request& request) {
  const auto began = Clock::now();
  const auto result = client.Compute(request);
  if (!result.ok()) throw std::runtime_error(result.status().ToString());
  return Milliseconds(Clock::now() - began).count();
}

double Percentile(std::vector<double>& values, double share) {
  std::sort(values.begin(), values.end());
  const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(values.size())));
  return values[std::clamp<size_t>(rank, 1, values.size()) - 1];
}

nlohmann::json Summary(std::vector<double> milliseconds) {
  return {{"requests", milliseconds.size()},
          {"p50_ms", Percentile(milliseconds, 0.5)},
          {"p99_ms", Percentile(milliseconds, 0.99)},
          {"max_ms", Percentile(milliseconds, 1)}};
}

// Several clients, each with pauses of its own, so that the time to measure is not all pauses. Beside them, in the same
// run, the same request back to back, as one client alone has it.
nlohmann::json Idle(const Flags& flags) {
  const std::vector<float> values(4 * 128 * 64, 0.5f);
  const Request request = Small(values);
  nlohmann::json result;
  {
    Client client = Connect(flags.server);
    TimeOf(client, request);
    std::vector<double> warm;
    for (int i = 0; i < 200; ++i) warm.push_back(TimeOf(client, request));
    result["back_to_back"] = Summary(warm);
  }
  for (const double pause : {0.5, 1.0, 1.5, 2.0, 3.0, 5.0}) {
    Client client = Connect(flags.server);
    TimeOf(client, request);
    std::vector<double> after;
    const auto until = Clock::now() + std::chrono::duration<double>(flags.seconds);
    while (Clock::now() < until || after.empty()) {
      std::this_thread::sleep_for(std::chrono::duration<double>(pause));
      after.push_back(TimeOf(client, request));
    }
    std::cerr << "after " << pause << " s: " << Summary(after) << "\n";
    result["after_pause"].push_back({{"pause_seconds", pause}, {"latency", Summary(after)}});
  }
  return result;
}

nlohmann::json ManyClients(const Flags& flags) {
  const std::vector<float> values(4 * 128 * 64, 0.5f);
  const Request request = Small(values);
  std::vector<std::vector<double>> times(static_cast<size_t>(flags.clients));
  std::vector<std::thread> threads;
  std::atomic<int> failed = 0;
  const auto began = Clock::now();
  const auto until = began + std::chrono::duration<double>(flags.seconds);
  for (std::vector<double>& own : times) {
    threads.emplace_back([&] {
      try {
        Client client = Connect(flags.server);
        while (Clock::now() < until) own.push_back(TimeOf(client, request));
      } catch (const std::exception& error) {
        ++failed;
        std::cerr << error.what() << "\n";
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const double seconds = std::chrono::duration<double>(Clock::now() - began).count();
  std::vector<double> all;
  for (const auto& own : times) all.insert(all.end(), own.begin(), own.end());
  nlohmann::json result = Summary(all);
  result["clients"] = flags.clients;
  result["failed_clients"] = failed.load();
  result["requests_per_second"] = static_cast<double>(all.size()) / seconds;
  return result;
}

// "VmRSS" or "VmHWM" of a process, in MiB.
double Memory(int pid, const std::string& key) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(key + ":", 0) == 0) return std::stod(line.substr(key.size() + 1)) / 1024;
  }
  throw std::runtime_error("no process " + std::to_string(pid));
}

// A double backward without cotangents: its outputs are zeros and cost nothing, so that only the wire is at work.
nlohmann::json PeakMemory(const Flags& flags) {
  constexpr int64_t kTensorBytes = int64_t{256} << 20;
  Client client = Connect(flags.server);
  const std::vector<float> values(4 * 128 * 64, 0.5f);
  TimeOf(client, Small(values));
  const double idle = Memory(getpid(), "VmRSS");
  const double server_idle = Memory(flags.server_pid, "VmRSS");

  std::vector<std::vector<std::byte>> tensors(8);
  for (std::vector<std::byte>& tensor : tensors) tensor.resize(kTensorBytes);
  Request request;
  request.operation = Operation::kDoubleBackward;
  size_t next = 0;
  for (const char* name : {"q", "k", "v", "do"}) {
    request.inputs.push_back({name,
                              {client::DataType::kFP32,
                               std::span<const std::byte>(tensors[next++]),
                               {1, 16, kTensorBytes / (16 * 64 * 4), 64}}});
  }
  for (const char* name : {"gq", "gk", "gv", "gdo"}) {
    request.outputs.push_back({name, std::span<std::byte>(tensors[next++])});
  }
  const double milliseconds = TimeOf(client, request);
  constexpr double kTensorsMib = 8.0 * kTensorBytes / (1 << 20);
  const auto side = [&](int pid, double before) {
    const double peak = Memory(pid, "VmHWM");
    return nlohmann::json{{"idle_mib", before}, {"peak_mib", peak}, {"above_tensors_mib", peak - before - kTensorsMib}};
  };
  return {{"tensors_mib", kTensorsMib},
          {"seconds", milliseconds / 1e3},
          {"gigabytes_per_second", kTensorsMib * (1 << 20) / milliseconds / 1e6},
          {"client", side(getpid(), idle)},
          {"server", side(flags.server_pid, server_idle)}};
}

int Main(int argc, char** argv) {
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  mallopt(M_TOP_PAD, 64 << 20);
  mallopt(M_ARENA_MAX, 1);
  Flags flags;
  CLI::App app("Measures the wire of a running server", "wire_benchmark");
  app.require_subcommand(1);
  app.add_option("--server", flags.server, "The server")->type_name("HOST:PORT");
  CLI::App* const idle = app.add_subcommand("idle", "A small request after pauses");
  CLI::App* const small = app.add_subcommand("small", "Many clients of small requests");
  CLI::App* const memory = app.add_subcommand("memory", "Peak memory of 1 GiB each way");
  for (CLI::App* command : {idle, small, memory}) command->fallthrough();
  idle->add_option("--seconds", flags.seconds, "For each pause");
  small->add_option("--seconds", flags.seconds, "To measure");
  small->add_option("--clients", flags.clients, "Clients");
  memory->add_option("--pid", flags.server_pid, "The server's process")->required();
  CLI11_PARSE(app, argc, argv);
  try {
    const nlohmann::json result = idle->parsed()    ? Idle(flags)
                                  : small->parsed() ? ManyClients(flags)
                                                    : PeakMemory(flags);
    std::cout << result.dump(2) << "\n";
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}

}  // namespace
}  // namespace flashbob

int main(int argc, char** argv) { return flashbob::Main(argc, argv); }
