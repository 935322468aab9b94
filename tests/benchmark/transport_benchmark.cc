// The wire of a running server beside gRPC's alone: how near the service comes to what its transport can do.
//
//   transport_benchmark bare   --device cuda:0 --port-file bare.port    serves as bare_server.h says, until stdin ends
//   transport_benchmark upload --server HOST:PORT --bare HOST:PORT      1 GiB up one stream, in chunks of 1 MiB
//   transport_benchmark download --server HOST:PORT                     256 MiB that lie there down one stream
//   transport_benchmark small  --server HOST:PORT --bare HOST:PORT      a small request inline beside an echo of its
//                                                                       bytes, both back to back
//   transport_benchmark link   --device cuda:0                          copies of 1 GiB of page-locked memory
//
// Rounds go through all sides in turn, so that what disturbs the machine disturbs each. Prints one JSON object;
// README.md here has the bars.
#include <flashbob/client.h>
#include <grpcpp/create_channel.h>
#include <malloc.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstring>
#include <fstream>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>

#include "flashbob/v1/attention_service.grpc.pb.h"
#include "kernels/devices/devices.h"
#include "tests/benchmark/bare_server.h"
#include "tests/benchmark/raw_upload.h"

namespace flashbob {
namespace {

using client::Client;
using client::NamedTensor;
using client::Request;
using client::TensorView;
using Clock = std::chrono::steady_clock;

constexpr size_t kUploadBytes = size_t{1} << 30;
constexpr size_t kDownloadBytes = size_t{256} << 20;
const std::vector<int64_t> kSmallShape = {1, 4, 128, 64};
constexpr size_t kSmallBytes = size_t{4} * 128 * 64 * 2;  // in bf16

struct Flags {
  std::string server = "127.0.0.1:50051";
  std::string bare;
  std::string device = "cpu";
  std::string port_file;
  std::string operation = "double_backward";
  int rounds = 10;
};

void Check(const absl::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.ToString());
}

template <class T>
T Value(absl::StatusOr<T> value) {
  Check(value.status());
  return *std::move(value);
}

Client Connect(const std::string& server, const std::string& token = "") {
  return Value(Client::Connect({.server = server, .token = token}));
}

double Percentile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1, static_cast<size_t>(share * static_cast<double>(values.size())))];
}

double Median(const std::vector<double>& values) { return Percentile(values, 0.5); }

double SecondsSince(Clock::time_point began) { return std::chrono::duration<double>(Clock::now() - began).count(); }

std::unique_ptr<Engine> MakeEngine(const std::string& device) { return Value(CreateEngine(device)); }

int Serve(const Flags& flags) {
  const std::unique_ptr<Engine> engine = MakeEngine(flags.device);
  const auto server = Value(BareServer::Start(*engine, kUploadBytes));
  std::ofstream(flags.port_file) << server->port() << "\n";
  std::string line;
  while (std::getline(std::cin, line)) {
  }
  return 0;
}

// GB/s of one upload; what it left on the server is deleted after it.
double UploadRate(Client& client, const std::vector<std::byte>& bytes) {
  const std::vector<int64_t> shape = {1, 16, static_cast<int64_t>(bytes.size() / (16 * 64 * 2)), 64};
  const NamedTensor tensor{"q", TensorView{client::DataType::kBF16, std::span<const std::byte>(bytes), shape}};
  const auto began = Clock::now();
  const auto stored = Value(client.PutTensors({tensor}));
  const double seconds = SecondsSince(began);
  Check(client.DeleteTensors(stored).status());
  return static_cast<double>(bytes.size()) / seconds / 1e9;
}

nlohmann::json Upload(const Flags& flags) {
  const std::vector<std::byte> bytes(kUploadBytes);
  struct Side {
    std::string name;
    std::function<double()> rate;
    std::vector<double> rates = {};
  };
  std::vector<Side> sides;
  const auto add = [&](const std::string& name, Client client) {
    sides.push_back({name, [&bytes, client]() mutable { return UploadRate(client, bytes); }});
  };
  add("server", Connect(flags.server));
  for (const char* taking : {"discard", "parse", "raw"}) add(taking, Connect(flags.bare, taking));
  const auto channel = grpc::CreateChannel(flags.bare, grpc::InsecureChannelCredentials());
  for (const char* taking : {"discard", "raw"}) {
    for (const bool copied : {true, false}) {
      sides.push_back(
          {std::string(taking) + (copied ? "_from_slices" : "_from_memory"), [&bytes, channel, taking, copied] {
             const auto began = Clock::now();
             if (!RawUpload(channel, taking, copied, bytes)) throw std::runtime_error("upload failed");
             return static_cast<double>(bytes.size()) / SecondsSince(began) / 1e9;
           }});
    }
  }
  for (Side& side : sides) side.rate();  // memory is mapped and page locked
  for (int i = 0; i < flags.rounds; ++i) {
    for (Side& side : sides) side.rates.push_back(side.rate());
  }
  nlohmann::json result;
  for (const Side& side : sides) {
    result["gigabytes_per_second"][side.name] = {{"median", Median(side.rates)}, {"best", Percentile(side.rates, 1)}};
  }
  const auto ratio = [&](size_t of, size_t to) { return Median(sides[of].rates) / Median(sides[to].rates); };
  result["server_to_discard"] = ratio(0, 1);
  result["raw_to_parse"] = ratio(3, 2);
  result["raw_client_to_client"] = ratio(6, 3);
  return result;
}

nlohmann::json Download(const Flags& flags) {
  Client client = Connect(flags.server);
  const std::vector<std::byte> bytes(kDownloadBytes);
  const std::vector<int64_t> shape = {1, 1, static_cast<int64_t>(bytes.size() / (64 * 2)), 64};
  const NamedTensor tensor{"q", TensorView{client::DataType::kBF16, std::span<const std::byte>(bytes), shape}};
  const auto stored = Value(client.PutTensors({tensor}));
  std::vector<double> rates;
  for (int i = 0; i <= flags.rounds; ++i) {
    const auto began = Clock::now();
    const auto tensors = Value(client.GetTensors(stored));
    const double rate = static_cast<double>(bytes.size()) / SecondsSince(began) / 1e9;
    if (i > 0) rates.push_back(rate);  // memory is mapped before
  }
  Check(client.DeleteTensors(stored).status());
  return {{"gigabytes_per_second", {{"median", Median(rates)}, {"best", Percentile(rates, 1)}}}};
}

struct SmallRequest {
  Request request;
  std::vector<size_t> up;    // bytes of each input
  std::vector<size_t> down;  // of each output
};

SmallRequest MakeSmall(const std::string& operation, const std::vector<std::byte>& bytes) {
  SmallRequest small;
  const auto input = [&](const char* name) {
    small.request.inputs.push_back({name, {client::DataType::kBF16, std::span<const std::byte>(bytes), kSmallShape}});
    small.up.push_back(bytes.size());
  };
  for (const char* name : {"q", "k", "v"}) input(name);
  if (operation == "forward") {
    small.request.operation = client::Operation::kForward;
    small.down = {bytes.size(), size_t{4} * 128 * 4};  // o and lse
  } else {
    small.request.operation = client::Operation::kDoubleBackward;
    for (const char* name : {"do", "uq", "uk", "uv"}) input(name);
    small.down.assign(4, bytes.size());
  }
  return small;
}

// The whole call, with its status, as the served one is timed.
void Echo(v1::AttentionService::Stub& stub, const SmallRequest& small, const std::vector<std::byte>& bytes) {
  grpc::ClientContext context;
  context.set_initial_metadata_corked(true);
  std::string sizes;
  for (size_t size : small.down) sizes += (sizes.empty() ? "" : ",") + std::to_string(size);
  context.AddMetadata("reply-bytes", sizes);
  const auto stream = stub.Compute(&context);
  v1::ComputeRequest message;
  for (size_t i = 0; i < small.up.size(); ++i) {
    message.mutable_chunk()->set_tensor_index(static_cast<uint32_t>(i));
    message.mutable_chunk()->set_data(bytes.data(), small.up[i]);
    if (i + 1 < small.up.size()) {
      stream->Write(message);
    } else {
      stream->WriteLast(message, {});
    }
  }
  v1::ComputeResponse response;
  std::vector<std::byte> taken(bytes.size());
  size_t received = 0;
  while (stream->Read(&response)) {
    const std::string& data = response.chunk().data();
    std::memcpy(taken.data(), data.data(), data.size());
    received += data.size();
  }
  if (!stream->Finish().ok() || received == 0) throw std::runtime_error("the bare server did not echo");
}

nlohmann::json Small(const Flags& flags) {
  std::vector<std::byte> bytes(kSmallBytes);
  std::mt19937 random{std::random_device()()};
  for (size_t at = 0; at < bytes.size(); at += 2) {  // bf16 of 1 to 2
    bytes[at] = static_cast<std::byte>(random());
    bytes[at + 1] = std::byte{0x3f};
  }
  const SmallRequest small = MakeSmall(flags.operation, bytes);
  Client client = Connect(flags.server);
  const auto stub = v1::AttentionService::NewStub(grpc::CreateChannel(flags.bare, grpc::InsecureChannelCredentials()));
  std::vector<double> served;
  std::vector<double> echoed;
  double compute = 0;
  double queue = 0;
  constexpr int kWarmUp = 2;
  constexpr int kInTurn = 50;
  for (int round = 0; round < flags.rounds + kWarmUp; ++round) {
    for (int i = 0; i < kInTurn; ++i) {
      const auto began = Clock::now();
      const client::Result result = Value(client.Compute(small.request));
      const double seconds = SecondsSince(began);
      if (round < kWarmUp) continue;
      served.push_back(seconds * 1e3);
      compute += std::chrono::duration<double, std::milli>(result.timings.compute).count();
      queue += std::chrono::duration<double, std::milli>(result.timings.queue).count();
    }
    for (int i = 0; i < kInTurn; ++i) {
      const auto began = Clock::now();
      Echo(*stub, small, bytes);
      if (round >= kWarmUp) echoed.push_back(SecondsSince(began) * 1e3);
    }
  }
  const auto requests = static_cast<double>(served.size());
  const auto side = [](const std::vector<double>& milliseconds) {
    return nlohmann::json{{"p50_ms", Median(milliseconds)}, {"p99_ms", Percentile(milliseconds, 0.99)}};
  };
  return {{"operation", flags.operation},
          {"requests", served.size()},
          {"served", side(served)},
          {"echo", side(echoed)},
          {"compute_ms", compute / requests},
          {"queue_ms", queue / requests},
          {"served_to_echo", Median(served) / Median(echoed)}};
}

nlohmann::json Link(const Flags& flags) {
  const std::unique_ptr<Engine> engine = MakeEngine(flags.device);
  if (engine->unified_memory()) throw std::runtime_error(flags.device + " has no memory apart from the host's");
  void* const host = Value(engine->AllocateHost(kUploadBytes));
  void* const device = Value(engine->Allocate(kUploadBytes));
  std::memset(host, 1, kUploadBytes);
  const std::unique_ptr<Stream> stream = Value(engine->CreateStream());
  std::vector<double> to_device;
  std::vector<double> to_host;
  const auto time = [&](std::vector<double>& rates, const auto& copy) {
    const auto began = Clock::now();
    Check(copy());
    Check(stream->Synchronize());
    rates.push_back(static_cast<double>(kUploadBytes) / SecondsSince(began) / 1e9);
  };
  for (int i = 0; i <= flags.rounds; ++i) {
    time(to_device, [&] { return engine->CopyToDevice(device, host, kUploadBytes, *stream); });
    time(to_host, [&] { return engine->CopyToHost(host, device, kUploadBytes, *stream); });
  }
  engine->Free(device);
  engine->FreeHost(host);
  return {{"to_device_gigabytes_per_second", Median(to_device)}, {"to_host_gigabytes_per_second", Median(to_host)}};
}

int Main(int argc, char** argv) {
  mallopt(M_MMAP_THRESHOLD, 1 << 30);  // as the server does, but that what a download took stays mapped
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  mallopt(M_TOP_PAD, 16 << 20);
  mallopt(M_ARENA_MAX, 1);
  Flags flags;
  CLI::App app("Measures a running server beside its transport alone", "transport_benchmark");
  app.require_subcommand(1);
  CLI::App* const bare = app.add_subcommand("bare", "Serve the transport alone");
  CLI::App* const upload = app.add_subcommand("upload", "1 GiB up one stream");
  CLI::App* const download = app.add_subcommand("download", "256 MiB down one stream");
  CLI::App* const small = app.add_subcommand("small", "A small request beside an echo");
  CLI::App* const link = app.add_subcommand("link", "Copies between host and device");
  bare->add_option("--port-file", flags.port_file, "Where its port is written")->required();
  for (CLI::App* command : {bare, link}) command->add_option("--device", flags.device, "Whose host memory is used");
  for (CLI::App* command : {upload, download, small}) {
    command->add_option("--server", flags.server, "The server")->type_name("HOST:PORT");
  }
  for (CLI::App* command : {upload, small}) {
    command->add_option("--bare", flags.bare, "The bare one")->type_name("HOST:PORT")->required();
  }
  for (CLI::App* command : {upload, download, small, link}) command->add_option("--rounds", flags.rounds, "Rounds");
  small->add_option("--op", flags.operation, "What is computed")->check(CLI::IsMember({"forward", "double_backward"}));
  CLI11_PARSE(app, argc, argv);
  try {
    if (bare->parsed()) return Serve(flags);
    const nlohmann::json result = upload->parsed()     ? Upload(flags)
                                  : download->parsed() ? Download(flags)
                                  : small->parsed()    ? Small(flags)
                                                       : Link(flags);
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
