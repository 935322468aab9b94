// Server: the whole service in one object: engine, memory, scheduler, gRPC, metrics. main.cc starts one; tests start as
// many as they like, each on its own free port.
#ifndef FLASHBOB_SERVER_SERVER_H_
#define FLASHBOB_SERVER_SERVER_H_

#include <grpcpp/server.h>

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/engine.h"
#include "server/auth/authenticator.h"
#include "server/auth/tls_files.h"
#include "server/base/clock.h"
#include "server/base/event_log.h"
#include "server/base/ticker.h"
#include "server/config/server_options.h"
#include "server/http/http_server.h"
#include "server/http/status_page.h"
#include "server/memory/host_memory_pool.h"
#include "server/metrics/server_metrics.h"
#include "server/scheduler/scheduler.h"
#include "server/service/attention_service.h"
#include "server/service/call_registry.h"
#include "server/service/callback_threads.h"
#include "server/service/keep_awake.h"
#include "server/service/server_info.h"
#include "server/store/tensor_store.h"

namespace flashbob::server {

// Thread safety: any thread; construct and destroy on one.
class Server {
 public:
  struct Environment {
    std::vector<std::unique_ptr<Engine>> engines;  // one a device, at least one
    const Clock* clock = nullptr;                  // must outlive the server
    EventLog* log = nullptr;                       // must outlive the server
    // Where given, adapted to how busy they are. Must outlive the server.
    CallbackThreads* callback_threads = nullptr;
    // Called once, from some thread, when the device failed and the process should be restarted.
    std::function<void(const absl::Status&)> on_device_lost;
  };

  // `options` as Resolve gives them. Serves when it returns.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options, Environment environment);
  // Ends what is still in flight. Drain first for a gentle end.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  int port() const { return port_; }
  int metrics_port() const { return http_server_ == nullptr ? 0 : http_server_->port(); }

  // Turns health to NOT_SERVING, refuses new requests, waits for those in flight, ends the rest with UNAVAILABLE
  // shortly before `grace` is over, and stops serving. Takes at most `grace`, but where a device hangs under a request
  // that is computed by the thread that took its last byte. Calling it again does nothing.
  void Drain(Duration grace);

  // For tests and metrics.
  PoolUse HostMemory() const { return pool_->Use(); }
  TensorStore& store() { return *store_; }
  Scheduler& scheduler() { return *scheduler_; }
  CallRegistry& calls() { return calls_; }
  ServerMetrics& metrics() { return *metrics_; }

 private:
  Server(const ServerOptions& options, Environment environment);

  absl::Status StartScheduler();
  absl::Status LoadFiles();
  // Reads the files again that may change while it serves.
  void Reload();
  void Listen(grpc::ServerBuilder& builder);
  absl::Status StartGrpc();
  absl::Status StartMetrics();
  void Tick();
  void SetServing(bool serving);
  ServerMetrics::Gauges ReadGauges() const;
  // Empty, or why no new request is let in.
  std::string NotReady() const;
  StatusSnapshot ReadStatus() const;
  // The pages of the metrics port.
  HttpResponse Page(std::string_view path);

  const ServerOptions options_;
  const Environment environment_;
  const TimePoint started_;
  const std::unique_ptr<ServerMetrics> metrics_;
  CallRegistry calls_;
  std::unique_ptr<HostMemoryPool> pool_;
  std::unique_ptr<TensorStore> store_;
  std::unique_ptr<Authenticator> authenticator_;
  std::unique_ptr<TlsFiles> tls_;  // null: clear text
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<ServerInfo> info_;
  std::unique_ptr<AttentionServiceImpl> service_;
  std::unique_ptr<grpc::Server> grpc_server_;
  int port_ = 0;
  std::unique_ptr<HttpServer> http_server_;
  std::unique_ptr<KeepAwake> keep_awake_;
  std::atomic<bool> draining_ = false;
  std::atomic<bool> device_lost_ = false;
  std::unique_ptr<Ticker> ticker_;
  std::unique_ptr<Ticker> idle_ticker_;
  std::unique_ptr<Ticker> hang_ticker_;
  std::unique_ptr<Ticker> threads_ticker_;
  std::unique_ptr<Ticker> reload_ticker_;
};

}  // namespace flashbob::server

#endif  // FLASHBOB_SERVER_SERVER_H_
