#include "server/server.h"

#include <grpc/grpc.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/base/errors.h"
#include "server/scheduler/fair_scheduler.h"
#include "server/version.h"

namespace flashbob::server {
namespace {

constexpr Duration kTick = std::chrono::milliseconds(200);
// A held `accepted` is late by at most so much.
constexpr Duration kIdleLook = std::chrono::milliseconds(200);
constexpr Duration kHangLook = std::chrono::seconds(1);
constexpr Duration kThreadsLook = std::chrono::milliseconds(100);
// Files that changed are taken over within this and the second that gRPC takes to look at certificates.
constexpr Duration kReload = std::chrono::milliseconds(500);
// Free memory that no request used for so long goes back to the system.
constexpr Duration kKeepFreeMemory = std::chrono::seconds(60);
// The end of the grace period, kept for the last statuses to reach their clients.
constexpr Duration kLastWords = std::chrono::milliseconds(2500);
// So long a device may keep one of gRPC's threads.
constexpr Duration kShort = std::chrono::microseconds(500);
// A page of more is of no use to people.
constexpr size_t kCallsShown = 50;

int Milliseconds(double seconds) { return static_cast<int>(seconds * 1000); }

std::vector<std::string> NamesOf(const std::vector<std::unique_ptr<Engine>>& engines) {
  std::vector<std::string> names;
  for (const auto& engine : engines) names.push_back(engine->device().name);
  return names;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options, Environment environment) {
  std::unique_ptr<Server> server(new Server(options, std::move(environment)));
  FLASHBOB_RETURN_IF_ERROR(server->LoadFiles());
  FLASHBOB_RETURN_IF_ERROR(server->StartScheduler());
  FLASHBOB_RETURN_IF_ERROR(server->StartGrpc());
  FLASHBOB_RETURN_IF_ERROR(server->StartMetrics());
  server->ticker_ = std::make_unique<Ticker>(kTick, [server = server.get()] { server->Tick(); });
  // On threads of their own: to free memory, as Tick does, may wait for a device that hangs.
  server->idle_ticker_ = std::make_unique<Ticker>(
      kIdleLook, [server = server.get()] { server->calls_.CutIdle(server->environment_.clock->Now()); });
  server->hang_ticker_ =
      std::make_unique<Ticker>(kHangLook, [server = server.get()] { server->scheduler_->LookForHangs(); });
  if (server->environment_.callback_threads != nullptr) {
    server->threads_ticker_ = std::make_unique<Ticker>(kThreadsLook, [server = server.get()] {
      server->environment_.callback_threads->Look(*server->environment_.clock);
    });
  }
  server->reload_ticker_ = std::make_unique<Ticker>(kReload, [server = server.get()] { server->Reload(); });
  return server;
}

Server::Server(const ServerOptions& options, Environment environment)
    : options_(options),
      environment_(std::move(environment)),
      started_(environment_.clock->Now()),
      metrics_(std::make_unique<ServerMetrics>(kVersion, NamesOf(environment_.engines))) {}

Server::~Server() {
  Drain(Duration(0));
  ticker_.reset();
  idle_ticker_.reset();
  hang_ticker_.reset();
  threads_ticker_.reset();
  reload_ticker_.reset();
  http_server_.reset();
  metrics_->SetGaugeSource(nullptr);
}

void Server::Drain(Duration grace) {
  if (draining_.exchange(true) || grpc_server_ == nullptr) return;
  SetServing(false);
  scheduler_->Drain();
  const Duration tail = std::min(grace / 2, kLastWords);
  if (!calls_.WaitUntilEmpty(grace - tail)) {
    environment_.log->Write(LogLevel::kWarning, "ending what is in flight", {{"calls_in_flight", calls_.size()}});
  }
  keep_awake_.reset();
  calls_.Close(
      RetryableError(Reason::kDraining, "the server is shutting down and ended this request", std::chrono::seconds(1)));
  // Lets connections go and cancels whatever has not taken its status in time.
  grpc_server_->Shutdown(std::chrono::system_clock::now() + tail / 2);
  grpc_server_->Wait();
}

absl::Status Server::StartScheduler() {
  pool_ =
      std::make_unique<HostMemoryPool>(*environment_.engines.front(), *environment_.clock, options_.host_memory_bytes);
  TensorStore::Options store_options;
  store_options.server = options_.server_name;
  store_options.max_bytes = options_.store_memory_bytes;
  store_options.max_lease = FromSeconds(options_.max_lease_seconds);
  store_options.default_lease = std::min(store_options.default_lease, store_options.max_lease);
  store_ = std::make_unique<TensorStore>(*environment_.clock, std::move(store_options));
  std::vector<Engine*> engines;
  for (const auto& engine : environment_.engines) engines.push_back(engine.get());
  FairScheduler::Options options;
  options.max_queued_requests = options_.max_queued_requests;
  options.max_message_bytes = MaxMessageBytes(options_);
  options.device_memory_bytes = options_.device_memory_bytes;
  options.within_ready = kShort;
  options.split_seconds = options_.split_seconds;
  options.on_device_lost = [this](const absl::Status& status) {
    device_lost_ = true;
    environment_.log->Write(LogLevel::kError, "device lost", {{"error", std::string(status.message())}});
    SetServing(false);
    if (environment_.on_device_lost) environment_.on_device_lost(status);
  };
  FLASHBOB_ASSIGN_OR_RETURN(scheduler_,
                            FairScheduler::Create(engines, *pool_, *environment_.clock, *metrics_, std::move(options)));
  return absl::OkStatus();
}

absl::Status Server::StartGrpc() {
  v1::Limits limits;
  limits.set_max_chunk_bytes(options_.max_chunk_bytes);
  limits.set_max_message_bytes(MaxMessageBytes(options_));
  limits.set_max_request_bytes(options_.host_memory_bytes);
  limits.set_max_queued_requests(options_.max_queued_requests);
  limits.set_max_metadata_bytes(kMaxMetadataBytes);
  limits.set_idle_upload_seconds(options_.idle_upload_seconds);
  limits.set_max_sequences(kMaxSequences);
  limits.set_max_heads(kMaxHeads);
  limits.set_max_lease_seconds(static_cast<int64_t>(options_.max_lease_seconds));
  info_ = std::make_unique<ServerInfo>(kVersion, *scheduler_, *pool_, std::move(limits));

  const CallEnvironment environment{*environment_.clock, calls_, *metrics_, *environment_.log,
                                    FromSeconds(options_.idle_upload_seconds)};
  service_ = std::make_unique<AttentionServiceImpl>(
      environment,
      ComputeEnvironment{*scheduler_, {*store_, *pool_, options_.max_chunk_bytes, MaxMessageBytes(options_)}},
      *authenticator_, *info_);

  // Never undone, so that the last gRPC object to go does not shut gRPC down: that joins a thread which, after a write
  // that met flow control, may poll for another 10 s.
  grpc_init();
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  Listen(builder);
  builder.RegisterService(service_.get());
  builder.SetMaxReceiveMessageSize(static_cast<int>(MaxMessageBytes(options_)));
  builder.SetMaxSendMessageSize(-1);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, static_cast<int>(kMaxMetadataBytes));
  // gRPC compares a message with the limit only once it has all of it, and takes some, for health and reflection, from
  // anybody: what it may hold for all connections together is bounded here. Past it, gRPC cancels streams.
  grpc::ResourceQuota quota("flashbob");
  quota.Resize(static_cast<size_t>(WireMemoryBytes(options_)));
  builder.SetResourceQuota(quota);
  // Who does not finish a handshake in time is let go.
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 10000);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // A peer that fell silent is found by pings, also between calls; clients may ping as often as every 5 s.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, Milliseconds(options_.keepalive_seconds));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Milliseconds(options_.keepalive_timeout_seconds));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5000);
  // Streams of one connection that have not even sent a spec are bounded too.
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, static_cast<int>(options_.max_queued_requests) + 64);
  // Only reflection is served synchronously.
  builder.SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MIN_POLLERS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, 2);
  grpc_server_ = builder.BuildAndStart();
  if (grpc_server_ == nullptr || (!options_.listen.empty() && port_ == 0)) {
    const std::string on = options_.listen_unix.empty() ? "" : absl::StrCat(" and unix:", options_.listen_unix);
    return absl::UnavailableError(absl::StrCat("cannot serve gRPC on ", options_.listen, on, "; is the port taken?"));
  }
  SetServing(true);
  keep_awake_ = std::make_unique<KeepAwake>(grpc_server_->InProcessChannel(grpc::ChannelArguments()));
  return absl::OkStatus();
}

void Server::Listen(grpc::ServerBuilder& builder) {
  if (!options_.listen.empty()) {
    const bool require = options_.tls_client_certificates == "required";
    builder.AddListeningPort(options_.listen,
                             tls_ == nullptr ? grpc::InsecureServerCredentials() : tls_->Credentials(require), &port_);
  }
  if (!options_.listen_unix.empty()) {
    builder.AddListeningPort(absl::StrCat("unix:", options_.listen_unix), grpc::InsecureServerCredentials());
  }
  const absl::StatusOr<HostPort> address = ParseHostPort(options_.listen);
  if (tls_ == nullptr && address.ok() && !IsLoopback(address->host)) {
    environment_.log->Write(LogLevel::kWarning,
                            "other machines reach this server in clear text: whoever sees the traffic has tensors and "
                            "tokens",
                            {{"listen", options_.listen}});
  }
}

absl::Status Server::LoadFiles() {
  FLASHBOB_ASSIGN_OR_RETURN(authenticator_, Authenticator::Create(options_.tenants_file));
  for (const auto& tenant : authenticator_->tenants()) metrics_->tenants().Add(tenant->name());
  if (options_.tls.certificate.empty()) return absl::OkStatus();
  FLASHBOB_ASSIGN_OR_RETURN(tls_, TlsFiles::Load(options_.tls));
  return absl::OkStatus();
}

void Server::Reload() {
  const auto report = [&](const absl::StatusOr<bool>& reloaded, const char* taken, const char* kept) {
    if (!reloaded.ok()) {
      environment_.log->Write(LogLevel::kError, kept, {{"error", std::string(reloaded.status().message())}});
    } else if (*reloaded) {
      environment_.log->Write(LogLevel::kInfo, taken);
    }
  };
  report(authenticator_->Reload(), "tenants read again", "tenants not read again: the earlier ones stay");
  for (const auto& tenant : authenticator_->tenants()) metrics_->tenants().Add(tenant->name());
  if (tls_ != nullptr) {
    report(tls_->Reload(), "certificates read again", "certificates not read again: the earlier ones stay in use");
  }
}

absl::Status Server::StartMetrics() {
  metrics_->SetGaugeSource([this] { return ReadGauges(); });
  if (options_.metrics_listen.empty()) return absl::OkStatus();
  FLASHBOB_ASSIGN_OR_RETURN(
      http_server_, HttpServer::Start(options_.metrics_listen, [this](std::string_view path) { return Page(path); }));
  return absl::OkStatus();
}

void Server::Tick() {
  store_->DropExpired();
  pool_->Trim(environment_.clock->Now() - kKeepFreeMemory);
}

void Server::SetServing(bool serving) {
  grpc::HealthCheckServiceInterface* const health = grpc_server_->GetHealthCheckService();
  health->SetServingStatus(v1::AttentionService::service_full_name(), serving);
  health->SetServingStatus(serving);
}

ServerMetrics::Gauges Server::ReadGauges() const {
  ServerMetrics::Gauges gauges;
  gauges.requests = scheduler_->CountByState();
  gauges.queue_limit = options_.max_queued_requests;
  gauges.calls_in_flight = calls_.size();
  gauges.host_memory = pool_->Use();
  for (const DeviceUse& device : scheduler_->Devices()) {
    const DeviceMemoryPool::Use& memory = device.memory;
    gauges.devices.push_back(
        {memory.limit_bytes, memory.reserved_bytes, memory.high_water_bytes, memory.largest_free_bytes});
  }
  const TensorStore::Use stored = store_->GetUse();
  gauges.stored_tensors = stored.tensors;
  gauges.stored_bytes = stored.bytes;
  gauges.store_limit_bytes = stored.max_bytes;
  for (const auto& tenant : authenticator_->tenants()) {
    const Tenant::Use use = tenant->GetUse();
    gauges.tenants.push_back({tenant->name(), use.bytes, use.in_flight});
  }
  if (tls_ != nullptr) {
    gauges.certificate_expiry = std::chrono::duration<double>(tls_->expiry().time_since_epoch()).count();
  }
  gauges.draining = draining_;
  gauges.ready = NotReady().empty();
  return gauges;
}

std::string Server::NotReady() const {
  if (draining_) return "draining: told to stop";
  if (device_lost_) return "a device failed";
  return "";
}

StatusSnapshot Server::ReadStatus() const {
  const TimePoint now = environment_.clock->Now();
  StatusSnapshot status;
  status.server_name = options_.server_name;
  status.version = kVersion;
  status.not_ready = NotReady();
  status.now = std::chrono::system_clock::now();
  status.uptime = now - started_;
  for (const DeviceUse& device : scheduler_->Devices()) {
    const DeviceInfo& info = device.engine->device();
    status.devices.push_back({info.name, info.model, device.engine->unified_memory(), device.memory});
  }
  status.host_memory = pool_->Use();
  status.store = store_->GetUse();
  status.requests = scheduler_->CountByState();
  status.queue_limit = options_.max_queued_requests;
  status.estimated_wait = scheduler_->Ahead().wait;
  for (const auto& tenant : authenticator_->tenants()) status.tenants.push_back({tenant->settings(), tenant->GetUse()});
  status.calls_in_flight = calls_.size();
  status.calls = calls_.View(now, kCallsShown);
  status.ended = calls_.Ended();
  return status;
}

HttpResponse Server::Page(std::string_view path) {
  constexpr char kHtml[] = "text/html; charset=utf-8";
  if (path == "/metrics") return {200, "text/plain; version=0.0.4; charset=utf-8", metrics_->Text()};
  if (path == "/statusz") return {200, kHtml, RenderStatusPage(ReadStatus())};
  HttpResponse response;
  if (path == "/healthz") {
    response.body = "ok\n";
  } else if (path == "/readyz") {
    const std::string why = NotReady();
    response.code = why.empty() ? 200 : 503;
    response.body = why.empty() ? "ready\n" : why + "\n";
  } else if (path == "/") {
    response.content_type = kHtml;
    response.body =
        "<!doctype html><title>FlashBoB</title><a href=\"/statusz\">status</a> <a "
        "href=\"/metrics\">metrics</a> <a href=\"/healthz\">health</a> <a href=\"/readyz\">readiness</a>\n";
  } else {
    response.code = 404;
    response.body = "no such page: /metrics, /statusz, /healthz and /readyz are served\n";
  }
  return response;
}

}  // namespace flashbob::server
