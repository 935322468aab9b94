#include "flashbob/client.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <future>
#include <iterator>
#include <optional>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cpp/backoff.h"
#include "client/cpp/call_state.h"
#include "client/cpp/compute_attempt.h"
#include "client/cpp/status.h"
#include "client/cpp/store_attempts.h"
#include "client/cpp/wire.h"
#include "flashbob/v1/attention_service.grpc.pb.h"
#include "kernels/base/status_macros.h"

namespace flashbob::client {
namespace {

using std::chrono::nanoseconds;
using std::chrono::steady_clock;
using std::chrono::system_clock;

constexpr nanoseconds kLongest = std::chrono::hours(24 * 365);  // timeouts that are longer are as good as this
constexpr size_t kMaxChunkBytes = size_t{16} << 20;
// Room for the largest chunk that a server may send and for specs with many sequences.
constexpr int kMaxMessageBytes = 64 << 20;
constexpr int kMaxMetadataBytes = 64 << 10;
// A name may stand for several servers: calls take turns on those that say they serve. One that drains or has lost its
// device says so by the health service, and gets no more calls before it answers the first with an error.
constexpr char kInTurn[] =
    R"({"loadBalancingConfig": [{"round_robin": {}}], "healthCheckConfig": {"serviceName": ""}})";

// The system's time, with channels kept going while a call pauses: with no call that waits, gRPC looks at connections
// every 5 s only, and a server that is back would be found long after.
class SystemClock : public Clock {
 public:
  explicit SystemClock(std::vector<std::shared_ptr<grpc::Channel>> channels) : channels_(std::move(channels)) {}

  steady_clock::time_point Now() override { return steady_clock::now(); }

  void Sleep(nanoseconds duration, const Cancellation& cancellation) override {
    constexpr nanoseconds kLook = std::chrono::milliseconds(20);  // at most so long until a cancellation is seen
    const auto end = steady_clock::now() + duration;
    for (auto left = duration; left > nanoseconds(0) && !cancellation.cancelled(); left = end - steady_clock::now()) {
      const auto broken = std::find_if(channels_.begin(), channels_.end(), [](const auto& channel) {
        const grpc_connectivity_state state = channel->GetState(false);
        return state == GRPC_CHANNEL_CONNECTING || state == GRPC_CHANNEL_TRANSIENT_FAILURE;
      });
      if (broken == channels_.end()) {
        cancellation.WaitFor(left);
      } else {
        const auto look = std::chrono::ceil<system_clock::duration>(std::min(left, kLook));
        (*broken)->WaitForStateChange((*broken)->GetState(false), system_clock::now() + look);
      }
    }
  }

 private:
  const std::vector<std::shared_ptr<grpc::Channel>> channels_;
};

absl::StatusOr<std::string> ReadPem(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file || text.find("-----BEGIN ") == std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat("cannot read ", path, ", or it holds nothing in PEM"));
  }
  return text;
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeCredentials(const std::optional<TlsOptions>& tls) {
  if (!tls.has_value()) return grpc::InsecureChannelCredentials();
  if (tls->certificate_file.empty() != tls->key_file.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("certificate_file is \"", tls->certificate_file,
                                                   "\" and key_file \"", tls->key_file, "\"; each needs the other"));
  }
  grpc::SslCredentialsOptions options;
  if (!tls->ca_file.empty()) {
    FLASHBOB_ASSIGN_OR_RETURN(options.pem_root_certs, ReadPem(tls->ca_file));
  }
  if (!tls->certificate_file.empty()) {
    FLASHBOB_ASSIGN_OR_RETURN(options.pem_cert_chain, ReadPem(tls->certificate_file));
    FLASHBOB_ASSIGN_OR_RETURN(options.pem_private_key, ReadPem(tls->key_file));
  }
  return grpc::SslCredentials(options);
}

std::shared_ptr<grpc::Channel> MakeChannel(const ClientOptions& options,
                                           const std::shared_ptr<grpc::ChannelCredentials>& credentials,
                                           const char* service_config) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetMaxSendMessageSize(kMaxMessageBytes);
  arguments.SetInt(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);  // errors travel with their details
  // Tries are repeated here, where the contract says which; gRPC's own retries would hold copies of what was sent.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  if (service_config != nullptr) arguments.SetServiceConfigJSON(service_config);
  // A client's connection is its own: no earlier failure of another one delays it.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 5000);
  // Finds a server that fell silent while a call waits for it.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 20000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10000);
  if (options.tls.has_value() && !options.tls->server_name.empty()) {
    arguments.SetSslTargetNameOverride(options.tls->server_name);
  }
  return grpc::CreateCustomChannel(options.server, credentials, arguments);
}

// Whether the call uses or leaves tensors in one server's store.
bool IsBound(const Request& request) {
  const auto& inputs = request.inputs;
  const auto& outputs = request.outputs;
  return std::any_of(inputs.begin(), inputs.end(), [](const auto& input) { return input.stored.has_value(); }) ||
         std::any_of(outputs.begin(), outputs.end(), [](const auto& output) { return output.keep.has_value(); });
}

std::string RandomPrefix() {
  std::random_device random;
  return absl::StrFormat("%08x%08x%08x-", random(), random(), random());
}

double Seconds(nanoseconds duration) { return std::chrono::duration<double>(duration).count(); }

absl::Status WithText(const absl::Status& status, const std::string& text) {
  absl::Status changed(status.code(), text);
  status.ForEachPayload([&](auto url, const absl::Cord& payload) { changed.SetPayload(url, payload); });
  return changed;
}

absl::Status CheckOptions(const ClientOptions& options) {
  if (options.server.empty()) return absl::InvalidArgumentError("server is empty; it must be host:port");
  if (options.chunk_bytes < 1 || options.chunk_bytes > kMaxChunkBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunk_bytes is ", options.chunk_bytes, "; it must be 1 to ", kMaxChunkBytes));
  }
  for (const unsigned char c : options.token) {
    // gRPC aborts the process on a header that HTTP/2 does not allow.
    if (c <= ' ' || c > '~') return absl::InvalidArgumentError("the token must be printable ASCII without spaces");
  }
  const RetryPolicy& retry = options.retry;
  if (retry.max_attempts < 1) {
    return absl::InvalidArgumentError(absl::StrCat("max_attempts is ", retry.max_attempts, "; it must be at least 1"));
  }
  if (retry.initial_backoff < nanoseconds(0) || retry.max_backoff < nanoseconds(0) || !(retry.multiplier >= 1) ||
      !(retry.jitter >= 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "backoff of ", Seconds(retry.initial_backoff), " s to ", Seconds(retry.max_backoff), " s, multiplier ",
        retry.multiplier, ", jitter ", retry.jitter, "; none may be negative, the multiplier not below 1"));
  }
  return absl::OkStatus();
}

}  // namespace

// What all copies of a Client and its calls in flight share. Thread safety: all methods from any thread.
class Client::Connection {
 public:
  Connection(ClientOptions options, const std::shared_ptr<grpc::ChannelCredentials>& credentials)
      : options_(std::move(options)),
        channel_(MakeChannel(options_, credentials, kInTurn)),
        bound_channel_(MakeChannel(options_, credentials, nullptr)),
        id_prefix_(RandomPrefix()),
        clock_(options_.clock == nullptr ? std::make_shared<SystemClock>(std::vector{channel_, bound_channel_})
                                         : options_.clock),
        stub_(v1::AttentionService::NewStub(channel_)),
        bound_stub_(v1::AttentionService::NewStub(bound_channel_)) {}

  absl::Status WaitUntilReady() {
    const auto deadline = system_clock::now() + options_.connect_timeout;
    for (auto state = channel_->GetState(true); state != GRPC_CHANNEL_READY; state = channel_->GetState(true)) {
      // A call on a channel that failed fails at once and says why.
      if (state == GRPC_CHANNEL_TRANSIENT_FAILURE) {
        grpc::ClientContext context;
        Prepare(context, deadline);
        return Explain(ServerInfoOnce(context, Cancellation()).status());
      }
      if (!channel_->WaitForStateChange(state, deadline)) {
        return absl::UnavailableError(
            absl::StrCat("no connection to ", options_.server, " within ", Seconds(options_.connect_timeout), " s"));
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Result> Compute(const Request& request, const CallOptions& call, const Cancellation& cancellation) {
    FLASHBOB_ASSIGN_OR_RETURN(v1::ComputeSpec spec, ToSpec(request));
    if (spec.request_id().empty()) spec.set_request_id(NewId());
    const ComputeAttempt attempt{IsBound(request) ? *bound_channel_ : *channel_,
                                 request,
                                 spec,
                                 options_.chunk_bytes,
                                 call.progress,
                                 cancellation};
    return Retry<Result>(call, cancellation,
                         [&](grpc::ClientContext& context) { return RunComputeAttempt(attempt, context); });
  }

  absl::StatusOr<std::vector<StoredTensor>> PutTensors(const std::vector<NamedTensor>& tensors,
                                                       std::chrono::seconds lease, const CallOptions& call) {
    FLASHBOB_ASSIGN_OR_RETURN(v1::PutTensorsSpec spec, ToPutSpec(tensors, lease));
    spec.set_request_id(NewId());
    const Cancellation cancellation = call.cancellation.value_or(Cancellation());
    return Retry<std::vector<StoredTensor>>(call, cancellation, [&](grpc::ClientContext& context) {
      const Cancellation::Registration cancel(cancellation, [&context] { context.TryCancel(); });
      return PutOnce(*bound_channel_, context, spec, tensors, options_.chunk_bytes);
    });
  }

  absl::StatusOr<std::vector<Tensor>> GetTensors(const std::vector<StoredTensor>& tensors, const CallOptions& call) {
    const Cancellation cancellation = call.cancellation.value_or(Cancellation());
    return Retry<std::vector<Tensor>>(call, cancellation, [&](grpc::ClientContext& context) {
      const Cancellation::Registration cancel(cancellation, [&context] { context.TryCancel(); });
      return GetOnce(*bound_stub_, context, tensors);
    });
  }

  absl::StatusOr<int64_t> DeleteTensors(const std::vector<StoredTensor>& tensors, const CallOptions& call) {
    const Cancellation cancellation = call.cancellation.value_or(Cancellation());
    return Retry<int64_t>(call, cancellation, [&](grpc::ClientContext& context) {
      const Cancellation::Registration cancel(cancellation, [&context] { context.TryCancel(); });
      return DeleteOnce(*bound_stub_, context, tensors);
    });
  }

  absl::StatusOr<ServerInfo> GetServerInfo(const CallOptions& call) {
    const Cancellation cancellation = call.cancellation.value_or(Cancellation());
    return Retry<ServerInfo>(call, cancellation,
                             [&](grpc::ClientContext& context) { return ServerInfoOnce(context, cancellation); });
  }

  absl::Status CheckHealth(const CallOptions& call) {
    const Cancellation cancellation = call.cancellation.value_or(Cancellation());
    grpc::ClientContext context;
    const nanoseconds timeout = std::min(call.timeout.value_or(options_.default_timeout), kLongest);
    Prepare(context, system_clock::now() + std::chrono::ceil<system_clock::duration>(timeout));
    return Explain(HealthOnce(context, cancellation), timeout);
  }

 private:
  // No other client's, nor another request's of this one.
  std::string NewId() { return absl::StrCat(id_prefix_, next_id_.fetch_add(1)); }

  void Prepare(grpc::ClientContext& context, system_clock::time_point deadline) const {
    context.set_deadline(deadline);
    if (!options_.token.empty()) context.AddMetadata("authorization", absl::StrCat("Bearer ", options_.token));
  }

  absl::StatusOr<ServerInfo> ServerInfoOnce(grpc::ClientContext& context, const Cancellation& cancellation) {
    const Cancellation::Registration cancel(cancellation, [&context] { context.TryCancel(); });
    v1::GetServerInfoResponse response;
    const grpc::Status status = stub_->GetServerInfo(&context, {}, &response);
    if (!status.ok()) return FromGrpcStatus(status);
    return ToServerInfo(response);
  }

  // The standard health service, asked for the server as a whole.
  absl::Status HealthOnce(grpc::ClientContext& context, const Cancellation& cancellation) {
    const Cancellation::Registration cancel(cancellation, [&context] { context.TryCancel(); });
    grpc::GenericStub stub(channel_);
    const grpc::Slice empty;  // HealthCheckRequest with no service named
    const grpc::ByteBuffer request(&empty, 1);
    grpc::ByteBuffer response;
    std::promise<grpc::Status> done;
    stub.UnaryCall(&context, "/grpc.health.v1.Health/Check", {}, &request, &response,
                   [&done](grpc::Status status) { done.set_value(std::move(status)); });
    const grpc::Status status = done.get_future().get();
    if (!status.ok()) return FromGrpcStatus(status);
    grpc::Slice bytes;
    if (!response.DumpToSingleSlice(&bytes).ok()) return absl::InternalError("the server's health cannot be read");
    // HealthCheckResponse{status: SERVING}: field 1, a varint, 1.
    constexpr std::string_view kServing("\x08\x01", 2);
    if (std::string_view(reinterpret_cast<const char*>(bytes.begin()), bytes.size()) != kServing) {
      return absl::UnavailableError("it says that it does not serve");
    }
    return absl::OkStatus();
  }

  // Tries until one succeeds, none is worth another, or time is up.
  template <typename T, typename Try>
  absl::StatusOr<T> Retry(const CallOptions& call, const Cancellation& cancellation, Try attempt) {
    const nanoseconds timeout = std::min(call.timeout.value_or(options_.default_timeout), kLongest);
    const auto deadline = clock_->Now() + timeout;
    std::optional<Backoff> backoff;  // at the first failure: to seed it takes as long as a good part of a small call
    while (true) {
      const nanoseconds left = deadline - clock_->Now();
      grpc::ClientContext context;
      Prepare(context, system_clock::now() + std::chrono::ceil<system_clock::duration>(left));
      absl::StatusOr<T> result = attempt(context);
      if (result.ok()) return result;
      if (cancellation.cancelled()) return absl::CancelledError("cancelled by the caller");
      const absl::Status error = Explain(result.status(), timeout);
      if (!backoff.has_value()) backoff.emplace(options_.retry, std::random_device()());
      const std::optional<nanoseconds> pause = backoff->PauseAfter(error);
      if (!pause.has_value() || clock_->Now() + *pause >= deadline) return error;
      clock_->Sleep(*pause, cancellation);
      if (cancellation.cancelled()) return absl::CancelledError("cancelled by the caller");
    }
  }

  // gRPC's own errors do not say which server, or which timeout; a call that this side did not cancel was reset by a
  // server that is going away, and one whose stream was reset below the service is no more answered than one whose
  // connection broke.
  absl::Status Explain(const absl::Status& status, std::optional<nanoseconds> timeout = std::nullopt) const {
    if (!ReasonOf(status).empty()) return status;
    if (status.code() == absl::StatusCode::kCancelled) {
      return absl::UnavailableError(absl::StrCat("server ", options_.server, " broke the call off"));
    }
    if (status.code() == absl::StatusCode::kUnavailable) {
      return WithText(status, absl::StrCat("server ", options_.server, ": ", status.message()));
    }
    if (status.code() == absl::StatusCode::kInternal && absl::StrContains(status.message(), "RST_STREAM")) {
      return absl::UnavailableError(absl::StrCat("server ", options_.server, ": ", status.message()));
    }
    if (status.code() == absl::StatusCode::kDeadlineExceeded && timeout.has_value()) {
      return WithText(status, absl::StrCat("server ", options_.server, ": no result within ", Seconds(*timeout), " s"));
    }
    return status;
  }

  const ClientOptions options_;
  // Calls on the first take turns on the servers. Those on the other stay with one of them, and so with the tensors
  // stored there; it connects with the first such call.
  const std::shared_ptr<grpc::Channel> channel_;
  const std::shared_ptr<grpc::Channel> bound_channel_;
  const std::string id_prefix_;
  std::atomic<uint64_t> next_id_ = 0;
  const std::shared_ptr<Clock> clock_;
  const std::unique_ptr<v1::AttentionService::Stub> stub_;
  const std::unique_ptr<v1::AttentionService::Stub> bound_stub_;
};

Client::Client(std::shared_ptr<Connection> connection) : connection_(std::move(connection)) {}

absl::StatusOr<Client> Client::Connect(ClientOptions options) {
  FLASHBOB_RETURN_IF_ERROR(CheckOptions(options));
  const bool wait = options.connect_timeout > nanoseconds(0);
  FLASHBOB_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::ChannelCredentials> credentials, MakeCredentials(options.tls));
  auto connection = std::make_shared<Connection>(std::move(options), credentials);
  if (wait) FLASHBOB_RETURN_IF_ERROR(connection->WaitUntilReady());
  return Client(std::move(connection));
}

absl::StatusOr<Result> Client::Compute(const Request& request, const CallOptions& call) {
  return connection_->Compute(request, call, call.cancellation.value_or(Cancellation()));
}

Call Client::ComputeAsync(Request request, CallOptions call) {
  auto state = std::make_shared<Call::State>();
  state->Start([connection = connection_, request = std::move(request), call = std::move(call)](Cancellation own) {
    std::optional<Cancellation::Registration> callers;
    if (call.cancellation.has_value()) callers.emplace(*call.cancellation, [own]() mutable { own.Cancel(); });
    return connection->Compute(request, call, own);
  });
  return Call(std::move(state));
}

absl::StatusOr<Result> Client::Forward(const Inputs& inputs, const AttentionOptions& options, const CallOptions& call) {
  return Compute({.operation = Operation::kForward, .options = options, .inputs = inputs.Named()}, call);
}

absl::StatusOr<Result> Client::Backward(const Inputs& inputs, const AttentionOptions& options,
                                        const CallOptions& call) {
  return Compute({.operation = Operation::kBackward, .options = options, .inputs = inputs.Named()}, call);
}

absl::StatusOr<Result> Client::DoubleBackward(const Inputs& inputs, const AttentionOptions& options,
                                              const CallOptions& call) {
  return Compute({.operation = Operation::kDoubleBackward, .options = options, .inputs = inputs.Named()}, call);
}

absl::StatusOr<Result> Client::Jvp(const Inputs& inputs, const AttentionOptions& options, const CallOptions& call) {
  return Compute({.operation = Operation::kJvp, .options = options, .inputs = inputs.Named()}, call);
}

absl::StatusOr<std::vector<StoredTensor>> Client::PutTensors(const std::vector<NamedTensor>& tensors,
                                                             std::chrono::seconds lease, const CallOptions& call) {
  return connection_->PutTensors(tensors, lease, call);
}

absl::StatusOr<std::vector<Tensor>> Client::GetTensors(const std::vector<StoredTensor>& tensors,
                                                       const CallOptions& call) {
  return connection_->GetTensors(tensors, call);
}

absl::StatusOr<int64_t> Client::DeleteTensors(const std::vector<StoredTensor>& tensors, const CallOptions& call) {
  return connection_->DeleteTensors(tensors, call);
}

absl::StatusOr<ServerInfo> Client::GetServerInfo(const CallOptions& call) { return connection_->GetServerInfo(call); }

absl::Status Client::CheckHealth(const CallOptions& call) { return connection_->CheckHealth(call); }

}  // namespace flashbob::client
