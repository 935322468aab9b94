#include "server/metrics/metrics_endpoint.h"

#include <prometheus/exposer.h>

#include <exception>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace flashbob::server {

absl::StatusOr<std::unique_ptr<MetricsEndpoint>> MetricsEndpoint::Start(
    const std::string& address, std::shared_ptr<prometheus::Collectable> source) {
  constexpr size_t kThreads = 2;
  try {  // prometheus-cpp reports a port that is taken by an exception
    auto exposer = std::make_unique<prometheus::Exposer>(address, kThreads);
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
