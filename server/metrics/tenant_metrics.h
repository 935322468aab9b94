// TenantMetrics: the series that have a tenant in their labels.
//
// Tenants come from the operator's file, never from clients, and only the first kMostTenants have series of their own;
// all others share the label "other". A tenant's series exist from when it is first known. Thread safety: any thread.
#ifndef FLASHBOB_SERVER_METRICS_TENANT_METRICS_H_
#define FLASHBOB_SERVER_METRICS_TENANT_METRICS_H_

#include <array>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "kernels/base/mutex.h"
#include "kernels/computation.h"
#include "prometheus/counter.h"
#include "prometheus/family.h"
#include "prometheus/gauge.h"
#include "prometheus/registry.h"
#include "server/base/clock.h"

namespace flashbob::server {

class TenantMetrics {
 public:
  static constexpr size_t kMostTenants = 100;

  // What a tenant holds now.
  struct Use {
    std::string tenant;
    int64_t bytes = 0;
    int64_t in_flight = 0;
  };

  explicit TenantMetrics(prometheus::Registry& registry);

  // Makes the tenant's series, where they are not there.
  void Add(const std::string& tenant);

  // A Compute call ended; no operation where no valid one was named.
  void CountRequest(std::string_view tenant, std::optional<Operation> operation, absl::StatusCode code);
  // A device worked so long for it.
  void AddDeviceTime(std::string_view tenant, Duration took);
  // Tenants that are not among these hold nothing.
  void SetUse(const std::vector<Use>& uses);

 private:
  struct Series {
    // By operation, the last row for requests without a valid one; then by gRPC code.
    std::array<std::vector<prometheus::Counter*>, std::size(kAllOperations) + 1> requests;
    prometheus::Counter* device_seconds;
    prometheus::Gauge* held_bytes;
    prometheus::Gauge* in_flight;
  };
  Series Make(const std::string& tenant);
  Series& Of(std::string_view tenant) FLASHBOB_REQUIRES(mutex_);

  prometheus::Family<prometheus::Counter>& requests_;
  prometheus::Family<prometheus::Counter>& device_seconds_;
  prometheus::Family<prometheus::Gauge>& held_bytes_;
  prometheus::Family<prometheus::Gauge>& in_flight_;
  Mutex mutex_;
  std::map<std::string, Series, std::less<>> series_ FLASHBOB_GUARDED_BY(mutex_);
};

}  // namespace flashbob::server

#endif  // FLASHBOB_SERVER_METRICS_TENANT_METRICS_H_
