// TestServer: a Server in this process, on a free port, with a SteppedEngine or the test's own engines, its log in
// memory.
#ifndef FLASHBOB_TESTS_SERVER_TESTING_TEST_SERVER_H_
#define FLASHBOB_TESTS_SERVER_TESTING_TEST_SERVER_H_

#include <gtest/gtest.h>

#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "server/server.h"
#include "tests/server/testing/compute_client.h"
#include "tests/server/testing/stepped_engine.h"

namespace flashbob::server {

class TestServer {
 public:
  // Small limits: 16 MiB of host memory, 8 queued requests. No metrics port.
  static ServerOptions DefaultOptions();

  explicit TestServer(SteppedEngine::Options engine = {}, const ServerOptions& options = DefaultOptions());
  // On a clock of the test's, which must outlive the server.
  TestServer(SteppedEngine::Options engine, const ServerOptions& options, const Clock& clock);
  // That adapts gRPC's threads, which must outlive it.
  explicit TestServer(CallbackThreads& callback_threads);
  static std::unique_ptr<TestServer> On(std::vector<std::unique_ptr<Engine>> engines, const ServerOptions& options);
  static std::unique_ptr<TestServer> On(std::unique_ptr<Engine> engine, const ServerOptions& options);
  ~TestServer();

  Server& server() { return *server_; }
  int port() const { return server_->port(); }
  // Only where it was made here.
  SteppedEngine& engine() { return *engine_; }
  // A stub on a connection of its own.
  std::unique_ptr<v1::AttentionService::Stub> Connect() const;
  // What was logged so far.
  std::string log() const;

  // Waits until no call is in flight; then whether all memory is free and a request is served.
  testing::AssertionResult CleanAndServing();

 private:
  struct OwnEngines {};
  explicit TestServer(OwnEngines) {}
  void Start(std::vector<std::unique_ptr<Engine>> engines, const ServerOptions& options, const Clock& clock);

  std::shared_ptr<std::ostringstream> log_text_;
  std::unique_ptr<EventLog> log_;
  const SteadyClock steady_clock_;
  CallbackThreads* const callback_threads_ = nullptr;
  SteppedEngine* engine_ = nullptr;  // the server's; null where the test brought its own
  std::unique_ptr<Server> server_;
};

}  // namespace flashbob::server

#endif  // FLASHBOB_TESTS_SERVER_TESTING_TEST_SERVER_H_
