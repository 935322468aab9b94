#include "client/cli/server_backend.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cli/client_request.h"
#include "flashbob/client.h"
#include "kernels/base/status_macros.h"

namespace flashbob::cli {
namespace {

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
    FLASHBOB_ASSIGN_OR_RETURN(const client::Result result,
                              client_.Compute(ToClientRequest(computation, tensors), call));
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
