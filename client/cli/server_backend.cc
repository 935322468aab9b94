#include "client/cli/server_backend.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "flashbob/client.h"
#include "kernels/base/status_macros.h"

namespace flashbob::cli {
namespace {

client::Operation ToClient(Operation operation) {
  switch (operation) {
    case Operation::kForward:
      return client::Operation::kForward;
    case Operation::kBackward:
      return client::Operation::kBackward;
    case Operation::kDoubleBackward:
      return client::Operation::kDoubleBackward;
    case Operation::kJvp:
      return client::Operation::kJvp;
  }
  return client::Operation::kForward;
}

client::DataType ToClient(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16:
      return client::DataType::kBF16;
    case DType::kFloat16:
      return client::DataType::kFP16;
    case DType::kFloat32:
      return client::DataType::kFP32;
    case DType::kFloat64:
      return client::DataType::kFP64;
  }
  return client::DataType::kFP32;
}

client::Layout ToClient(Layout layout) {
  switch (layout) {
    case Layout::kBHND:
      return client::Layout::kBHND;
    case Layout::kBNHD:
      return client::Layout::kBNHD;
    case Layout::kTHD:
      return client::Layout::kTHD;
  }
  return client::Layout::kBHND;
}

client::AttentionOptions ToClient(const ProblemOptions& options) {
  client::AttentionOptions converted;
  converted.layout = ToClient(options.layout);
  converted.window_left = options.window_left;
  converted.window_right = options.window_right;
  converted.alignment =
      options.alignment == Alignment::kBottomRight ? client::Alignment::kBottomRight : client::Alignment::kTopLeft;
  converted.scale = options.scale;
  converted.probes = options.probes;
  converted.cu_seqlens_q = options.cu_seqlens_q;
  converted.cu_seqlens_k = options.cu_seqlens_k;
  converted.allow_tf32 = options.allow_tf32;
  converted.deterministic = options.deterministic;
  return converted;
}

client::Request ToRequest(const Computation& computation, const TensorPointers& tensors) {
  const AttentionProblem& problem = computation.problem();
  const auto bytes_of = [&](TensorName name) {
    return std::span(static_cast<std::byte*>(tensors.Get(name)), static_cast<size_t>(problem.NumBytes(name)));
  };
  client::Request request;
  request.operation = ToClient(computation.operation());
  request.options = ToClient(problem.options());
  computation.inputs().ForEach([&](TensorName name) {
    request.inputs.push_back(
        {Name(name),
         {ToClient(problem.DTypeOf(name)), std::span<const std::byte>(bytes_of(name)), problem.ShapeOf(name)}});
  });
  computation.outputs().ForEach([&](TensorName name) { request.outputs.push_back({Name(name), bytes_of(name)}); });
  return request;
}

std::string Describe(const client::Progress& progress) {
  switch (progress.phase) {
    case client::Progress::Phase::kUploading:
      return "sending";
    case client::Progress::Phase::kQueued:
      return absl::StrCat("waiting, ", progress.queue_position, " ahead");
    case client::Progress::Phase::kComputing:
      return "computing";
    case client::Progress::Phase::kDownloading:
      return "receiving";
  }
  return "";
}

class ServerBackend : public Backend {
 public:
  explicit ServerBackend(client::Client client) : client_(std::move(client)) {}

  absl::StatusOr<Outcome> Compute(const Computation& computation, const TensorPointers& tensors,
                                  const ProgressCallback& progress) override {
    client::CallOptions call;
    if (progress) {
      call.progress = [&progress](const client::Progress& state) {
        progress(state.done / state.total, Describe(state));
      };
    }
    FLASHBOB_ASSIGN_OR_RETURN(const client::Result result, client_.Compute(ToRequest(computation, tensors), call));
    return Outcome{.device = result.device, .queue = result.timings.queue, .compute = result.timings.compute};
  }

  absl::StatusOr<client::ServerInfo> Info() override { return client_.GetServerInfo(); }

  absl::Status Health() override { return client_.CheckHealth(); }

 private:
  client::Client client_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> ConnectToServer(const std::string& server,
                                                         const std::optional<client::TlsOptions>& tls,
                                                         const std::string& token,
                                                         std::optional<std::chrono::nanoseconds> timeout) {
  client::ClientOptions options;
  options.server = server;
  options.tls = tls;
  options.token = token;
  if (timeout.has_value()) {
    options.default_timeout = *timeout;
    options.connect_timeout = std::min(options.connect_timeout, *timeout);
  }
  FLASHBOB_ASSIGN_OR_RETURN(client::Client client, client::Client::Connect(std::move(options)));
  return std::make_unique<ServerBackend>(std::move(client));
}

}  // namespace flashbob::cli
