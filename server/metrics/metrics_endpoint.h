// MetricsEndpoint: serves /metrics over HTTP.
#ifndef FLASHBOB_SERVER_METRICS_METRICS_ENDPOINT_H_
#define FLASHBOB_SERVER_METRICS_METRICS_ENDPOINT_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "prometheus/collectable.h"

namespace prometheus {
class Exposer;
}

namespace flashbob::server {

class MetricsEndpoint {
 public:
  // `address` is HOST:PORT; port 0 takes a free one. UNAVAILABLE where it cannot be had.
  static absl::StatusOr<std::unique_ptr<MetricsEndpoint>> Start(const std::string& address,
                                                                std::shared_ptr<prometheus::Collectable> source);
  // Waits for scrapes in progress.
  ~MetricsEndpoint();

  int port() const { return port_; }

 private:
  MetricsEndpoint(std::unique_ptr<prometheus::Exposer> exposer, std::shared_ptr<prometheus::Collectable> source,
                  int port);

  const std::shared_ptr<prometheus::Collectable> source_;
  const std::unique_ptr<prometheus::Exposer> exposer_;
  const int port_;
};

}  // namespace flashbob::server

#endif  // FLASHBOB_SERVER_METRICS_METRICS_ENDPOINT_H_
