// ServerMetrics: the server's Prometheus series.
//
// Every series exists from the start (a tenant's: from when it is in the tenants file), with the label values that it
// can ever have, so that nothing is absent until its first use and nothing that a client sends becomes a label.
// Counters and histograms are written as things happen; gauges are read from the server whenever somebody scrapes.
// Thread safety: any thread.
#ifndef FLASHBOB_SERVER_METRICS_SERVER_METRICS_H_
#define FLASHBOB_SERVER_METRICS_SERVER_METRICS_H_

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "kernels/computation.h"
#include "prometheus/counter.h"
#include "prometheus/family.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"
#include "server/memory/host_memory_pool.h"
#include "server/metrics/code_name.h"
#include "server/metrics/tenant_metrics.h"
#include "server/scheduler/request.h"

namespace flashbob::server {

// The methods of AttentionService.
enum class Method : uint8_t { kCompute, kPutTensors, kGetTensors, kDeleteTensors, kGetServerInfo };
inline constexpr int kNumMethods = 5;
const char* Name(Method method);  // "Compute"

// Parts of a request's life that have a duration.
enum class Stage : uint8_t { kReceive, kQueue, kDevice, kSend };
inline constexpr int kNumStages = 4;

// Of copies between host and device memory.
enum class Direction : uint8_t { kToDevice, kToHost };
inline constexpr int kNumDirections = 2;

class ServerMetrics {
 public:
  struct DeviceMemory {
    int64_t limit_bytes = 0;
    int64_t reserved_bytes = 0;
    int64_t high_water_bytes = 0;
    int64_t largest_free_bytes = 0;
  };
  // What gauges show, read at each scrape.
  struct Gauges {
    std::array<int64_t, kNumRequestStates> requests = {};
    int64_t queue_limit = 0;
    int64_t calls_in_flight = 0;
    PoolUse host_memory;
    std::vector<DeviceMemory> devices;  // in the order of the constructor's
    int64_t stored_tensors = 0;
    int64_t stored_bytes = 0;
    int64_t store_limit_bytes = 0;
    std::vector<TenantMetrics::Use> tenants;
    double certificate_expiry = 0;  // in seconds since 1970; 0: no TLS
    bool draining = false;
    bool ready = false;
  };

  ServerMetrics(const std::string& version, const std::vector<std::string>& devices);

  // Where gauges come from; until it is set, and after it is set to nothing, they stay as they are.
  void SetGaugeSource(std::function<Gauges()> source);

  // A call ended, as its client sees it.
  void CountCall(Method method, absl::StatusCode code);
  // A Compute call ended after so long; no operation where no valid one was named.
  void CountRequest(std::string_view tenant, std::optional<Operation> operation, absl::StatusCode code, Duration took);
  // A call ended with an error of this reason. Reasons that are none of ours are passed over.
  void CountError(std::string_view reason);
  void Observe(Stage stage, Duration duration);
  void AddBytesReceived(int64_t bytes);
  void AddBytesSent(int64_t bytes);
  // A device, by its index, ran a slice for a tenant.
  void CountSlice(size_t device, std::string_view tenant, Duration took, double flops);
  // Tensors were copied to or from a device, by its index, outside slices.
  void CountCopy(size_t device, Direction direction, int64_t bytes, Duration took);
  // A request was split into so many parts.
  void CountSplit(size_t parts);

  TenantMetrics& tenants() { return tenants_; }

  std::vector<prometheus::MetricFamily> Collect();
  // The same in Prometheus' text format.
  std::string Text();

 private:
  struct CopySeries {
    prometheus::Counter* bytes;
    prometheus::Counter* seconds;
  };
  struct DeviceSeries {
    prometheus::Counter* slices;
    prometheus::Counter* busy_seconds;
    prometheus::Counter* flops;
    prometheus::Gauge* limit_bytes;
    prometheus::Gauge* reserved_bytes;
    prometheus::Gauge* high_water_bytes;
    prometheus::Gauge* largest_free_bytes;
    std::array<CopySeries, kNumDirections> copies;
  };

  void MakeDevices(const std::vector<std::string>& devices);
  void MakeGauges();
  void Refresh(const Gauges& gauges);

  prometheus::Registry registry_;
  TenantMetrics tenants_{registry_};
  std::array<std::array<prometheus::Counter*, kNumCodes>, kNumMethods> calls_;
  std::array<prometheus::Histogram*, std::size(kAllOperations)> durations_;
  std::map<std::string, prometheus::Counter*, std::less<>> errors_;
  std::array<prometheus::Histogram*, kNumStages> stages_;
  prometheus::Counter* bytes_received_;
  prometheus::Counter* bytes_sent_;
  prometheus::Counter* requests_split_;
  prometheus::Counter* split_parts_;
  std::vector<DeviceSeries> devices_;
  std::array<prometheus::Gauge*, kNumRequestStates> in_state_;
  prometheus::Gauge* queue_depth_;
  prometheus::Gauge* queue_limit_;
  prometheus::Gauge* calls_in_flight_;
  prometheus::Gauge* host_limit_;
  prometheus::Gauge* host_reserved_;
  prometheus::Gauge* host_used_;
  prometheus::Gauge* host_high_water_;
  prometheus::Gauge* host_largest_free_;
  prometheus::Gauge* host_waiting_;
  prometheus::Gauge* stored_tensors_;
  prometheus::Gauge* stored_bytes_;
  prometheus::Gauge* store_limit_;
  prometheus::Gauge* certificate_expiry_;
  prometheus::Gauge* draining_;
  prometheus::Gauge* ready_;
  prometheus::Gauge* resident_bytes_;
  prometheus::Counter* cpu_seconds_;

  mutable Mutex mutex_;
  std::function<Gauges()> source_ FLASHBOB_GUARDED_BY(mutex_);
};

}  // namespace flashbob::server

#endif  // FLASHBOB_SERVER_METRICS_SERVER_METRICS_H_
