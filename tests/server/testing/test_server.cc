#include "tests/server/testing/test_server.h"

#include <thread>

#include "spdlog/sinks/ostream_sink.h"

namespace flashbob::server {

ServerOptions TestServer::DefaultOptions() {
  ServerOptions options;
  options.listen = "127.0.0.1:0";
  options.metrics_listen = "";
  options.host_memory_bytes = 16 << 20;
  options.store_memory_bytes = 8 << 20;
  options.max_queued_requests = 8;
  options.max_chunk_bytes = 1 << 20;
  options.log_level = LogLevel::kDebug;
  return options;
}

TestServer::TestServer(SteppedEngine::Options engine_options, const ServerOptions& options)
    : TestServer(engine_options, options, steady_clock_) {}

TestServer::TestServer(CallbackThreads& callback_threads) : callback_threads_(&callback_threads) {
  std::vector<std::unique_ptr<Engine>> engines;
  engines.push_back(std::make_unique<SteppedEngine>(SteppedEngine::Options{}));
  Start(std::move(engines), DefaultOptions(), steady_clock_);
}

TestServer::TestServer(SteppedEngine::Options engine_options, const ServerOptions& options, const Clock& clock) {
  auto engine = std::make_unique<SteppedEngine>(engine_options);
  engine_ = engine.get();
  std::vector<std::unique_ptr<Engine>> engines;
  engines.push_back(std::move(engine));
  Start(std::move(engines), options, clock);
}

std::unique_ptr<TestServer> TestServer::On(std::vector<std::unique_ptr<Engine>> engines, const ServerOptions& options) {
  std::unique_ptr<TestServer> server(new TestServer(OwnEngines()));
  server->Start(std::move(engines), options, server->steady_clock_);
  return server;
}

std::unique_ptr<TestServer> TestServer::On(std::unique_ptr<Engine> engine, const ServerOptions& options) {
  std::vector<std::unique_ptr<Engine>> engines;
  engines.push_back(std::move(engine));
  return On(std::move(engines), options);
}

void TestServer::Start(std::vector<std::unique_ptr<Engine>> engines, const ServerOptions& options, const Clock& clock) {
  log_text_ = std::make_shared<std::ostringstream>();
  log_ = std::make_unique<EventLog>(options.log_level, LogFormat::kText,
                                    std::make_shared<spdlog::sinks::ostream_sink_mt>(*log_text_));
  Server::Environment environment;
  environment.engines = std::move(engines);
  environment.clock = &clock;
  environment.log = log_.get();
  environment.callback_threads = callback_threads_;
  absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(options, std::move(environment));
  if (!server.ok()) throw std::runtime_error(server.status().ToString());
  server_ = *std::move(server);
}

TestServer::~TestServer() {
  if (engine_ != nullptr) engine_->LetGo();
}

std::unique_ptr<v1::AttentionService::Stub> TestServer::Connect() const {
  const std::shared_ptr<grpc::Channel> channel = ConnectTo(server_->port());
  // Connections made and dropped by many threads at once fail now and then in gRPC's poller; the next try holds.
  channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(10));
  return v1::AttentionService::NewStub(channel);
}

std::string TestServer::log() const { return log_text_->str(); }

testing::AssertionResult TestServer::CleanAndServing() {
  if (!server_->calls().WaitUntilEmpty(std::chrono::seconds(10))) {
    return testing::AssertionFailure() << server_->calls().size() << " calls are still in flight";
  }
  // A request that was cancelled while it ran keeps its memory until its slice has ended.
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (server_->HostMemory().reserved_bytes != 0) {
    if (std::chrono::steady_clock::now() > until) {
      return testing::AssertionFailure() << server_->HostMemory().reserved_bytes << " bytes are still reserved";
    }
    std::this_thread::yield();
  }
  for (int64_t count : server_->scheduler().CountByState()) {
    if (count != 0) return testing::AssertionFailure() << count << " requests are left";
  }
  const Computed computed = Compute(*Connect(), ForwardSpec(1, 4, 4));
  if (!computed.status.ok()) return testing::AssertionFailure() << computed.status.error_message();
  server_->calls().WaitUntilEmpty(std::chrono::seconds(10));
  return testing::AssertionSuccess();
}

}  // namespace flashbob::server
