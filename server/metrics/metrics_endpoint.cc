#include "server/metrics/metrics_endpoint.h"

#include <prometheus/exposer.h>

#include <exception>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace flashbob::server {

absl::StatusOr<std::unique_ptr<MetricsEndpoint>> MetricsEndpoint::Start(
    const std::string& address, std::shared_ptr<prometheus::Collectable> source) {
  // A connection that sends nothing holds a thread until the timeout: some more threads than scrapers, and a short one.
  const std::vector<std::string> settings = {"listening_ports",    address, "num_threads", "8",
                                             "request_timeout_ms", "2000"};
  try {  // prometheus-cpp reports a port that is taken by an exception
    auto exposer = std::make_unique<prometheus::Exposer>(settings);
    exposer->RegisterCollectable(source);
    const std::vector<int> ports = exposer->GetListeningPorts();
    const int port = ports.empty() ? 0 : ports.front();
    return std::unique_ptr<MetricsEndpoint>(new MetricsEndpoint(std::move(exposer), std::move(source), port));
  } catch (const std::exception& error) {
    return absl::UnavailableError(
        absl::StrCat("cannot serve metrics on ", address, "; is the port taken? (", error.what(), ")"));
  }
}

MetricsEndpoint::MetricsEndpoint(std::unique_ptr<prometheus::Exposer> exposer,
                                 std::shared_ptr<prometheus::Collectable> source, int port)
    : source_(std::move(source)), exposer_(std::move(exposer)), port_(port) {}

MetricsEndpoint::~MetricsEndpoint() = default;

}  // namespace flashbob::server
