#include "server/metrics/server_metrics.h"

#include <prometheus/text_serializer.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <utility>

#include "server/base/errors.h"

namespace flashbob::server {
namespace {

using prometheus::Counter;
using prometheus::Family;
using prometheus::Gauge;
using prometheus::Histogram;
using prometheus::Registry;

Family<Counter>& Counters(Registry& registry, const char* name, const char* help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
}

Gauge* OneGauge(Registry& registry, const char* name, const char* help) {
  return &prometheus::BuildGauge().Name(name).Help(help).Register(registry).Add({});
}

const char* Name(Stage stage) {
  switch (stage) {
    case Stage::kReceive:
      return "receive";
    case Stage::kQueue:
      return "queue";
    case Stage::kDevice:
      return "device";
    case Stage::kSend:
      return "send";
  }
  return "unknown";
}

const char* Name(Direction direction) { return direction == Direction::kToDevice ? "to_device" : "to_host"; }

// Of this process: bytes in memory, and CPU seconds so far.
double ResidentBytes() {
  int64_t pages = 0;
  int64_t resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return static_cast<double>(resident * sysconf(_SC_PAGE_SIZE));
}

double CpuSeconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace

const char* Name(Method method) {
  switch (method) {
    case Method::kCompute:
      return "Compute";
    case Method::kPutTensors:
      return "PutTensors";
    case Method::kGetTensors:
      return "GetTensors";
    case Method::kDeleteTensors:
      return "DeleteTensors";
    case Method::kGetServerInfo:
      return "GetServerInfo";
  }
  return "unknown";
}

ServerMetrics::ServerMetrics(const std::string& version, const std::vector<std::string>& devices) {
  auto& calls = Counters(registry_, "flashbob_calls_total", "Calls that ended, by method and gRPC code.");
  for (size_t code = 0; code < kNumCodes; ++code) {
    for (int method = 0; method < kNumMethods; ++method) {
      calls_[static_cast<size_t>(method)][code] =
          &calls.Add({{"method", Name(static_cast<Method>(method))}, {"code", kCodeNames[code]}});
    }
  }
  auto& errors = Counters(registry_, "flashbob_errors_total", "Calls that ended with an error, by its reason.");
  for (Reason reason : kAllReasons) errors_[server::Name(reason)] = &errors.Add({{"reason", server::Name(reason)}});

  const Histogram::BucketBoundaries bounds = {0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1,
                                              0.3,    1,      3,     10,    30,   100,  300};
  auto& stages = prometheus::BuildHistogram()
                     .Name("flashbob_request_stage_seconds")
                     .Help("Time that computed requests spent: receive (inputs), queue, device, send (outputs).")
                     .Register(registry_);
  for (int stage = 0; stage < kNumStages; ++stage) {
    stages_[static_cast<size_t>(stage)] = &stages.Add({{"stage", Name(static_cast<Stage>(stage))}}, bounds);
  }
  auto& durations = prometheus::BuildHistogram()
                        .Name("flashbob_request_seconds")
                        .Help("Time from the start to the end of Compute calls that ended with OK, by operation.")
                        .Register(registry_);
  for (Operation operation : kAllOperations) {
    durations_[static_cast<size_t>(operation)] = &durations.Add({{"operation", flashbob::Name(operation)}}, bounds);
  }
  bytes_received_ =
      &Counters(registry_, "flashbob_received_bytes_total", "Tensor bytes received from clients.").Add({});
  bytes_sent_ = &Counters(registry_, "flashbob_sent_bytes_total", "Tensor bytes sent to clients.").Add({});
  requests_split_ =
      &Counters(registry_, "flashbob_split_requests_total", "Requests that were split over several devices.").Add({});
  split_parts_ = &Counters(registry_, "flashbob_split_parts_total", "Parts that those were split into.").Add({});
  MakeDevices(devices);
  MakeGauges();
  prometheus::BuildGauge()
      .Name("flashbob_build_info")
      .Help("Always 1; the label says which build this is.")
      .Register(registry_)
      .Add({{"version", version}})
      .Set(1);
}

void ServerMetrics::MakeDevices(const std::vector<std::string>& devices) {
  auto& slices = Counters(registry_, "flashbob_device_slices_total", "Slices of work that a device ran.");
  auto& busy = Counters(registry_, "flashbob_device_busy_seconds_total", "Time that a device spent in slices.");
  auto& flops = Counters(registry_, "flashbob_device_flops_total", "Floating-point operations that a device did.");
  const auto gauges = [&](const char* name, const char* help) -> Family<Gauge>& {
    return prometheus::BuildGauge().Name(name).Help(help).Register(registry_);
  };
  auto& limit = gauges("flashbob_device_memory_limit_bytes",
                       "Most device memory that requests may hold; 0, as the next ones, where host memory is device "
                       "memory.");
  auto& reserved = gauges("flashbob_device_memory_reserved_bytes", "Device memory that requests hold now.");
  auto& high_water = gauges("flashbob_device_memory_high_water_bytes", "Most that requests ever held.");
  auto& largest_free =
      gauges("flashbob_device_memory_largest_free_bytes", "The largest request that could have memory now.");
  auto& copied = Counters(registry_, "flashbob_device_copied_bytes_total",
                          "Tensor bytes copied between host and device memory, but for those of small requests, which "
                          "a slice copies.");
  auto& copying = Counters(registry_, "flashbob_device_copy_seconds_total", "Time that those copies took.");
  for (const std::string& device : devices) {
    const prometheus::Labels labels = {{"device", device}};
    std::array<CopySeries, kNumDirections> copies;
    for (int direction = 0; direction < kNumDirections; ++direction) {
      const prometheus::Labels both = {{"device", device}, {"direction", Name(static_cast<Direction>(direction))}};
      copies[static_cast<size_t>(direction)] = {&copied.Add(both), &copying.Add(both)};
    }
    devices_.push_back({&slices.Add(labels), &busy.Add(labels), &flops.Add(labels), &limit.Add(labels),
                        &reserved.Add(labels), &high_water.Add(labels), &largest_free.Add(labels), copies});
  }
}

void ServerMetrics::MakeGauges() {
  auto& in_state = prometheus::BuildGauge()
                       .Name("flashbob_requests_in_state")
                       .Help("Compute requests in each state of their life now.")
                       .Register(registry_);
  for (int state = 0; state < kNumRequestStates; ++state) {
    in_state_[static_cast<size_t>(state)] = &in_state.Add({{"state", server::Name(static_cast<RequestState>(state))}});
  }
  queue_depth_ =
      OneGauge(registry_, "flashbob_queue_depth", "Compute requests that wait for memory, input or a device.");
  queue_limit_ = OneGauge(registry_, "flashbob_queue_limit", "Most that flashbob_queue_depth may be.");
  calls_in_flight_ = OneGauge(registry_, "flashbob_calls_in_flight", "Calls of any method that have not ended.");
  host_limit_ = OneGauge(registry_, "flashbob_host_memory_limit_bytes", "Most host memory that requests may reserve.");
  host_reserved_ = OneGauge(registry_, "flashbob_host_memory_reserved_bytes", "Host memory that requests reserve now.");
  host_used_ = OneGauge(registry_, "flashbob_host_memory_used_bytes", "Host memory really allocated for requests now.");
  host_high_water_ = OneGauge(registry_, "flashbob_host_memory_high_water_bytes", "Most that was ever reserved.");
  host_largest_free_ =
      OneGauge(registry_, "flashbob_host_memory_largest_free_bytes", "Largest reservation possible now.");
  host_waiting_ = OneGauge(registry_, "flashbob_host_memory_waiting", "Reservations that wait for memory now.");
  stored_tensors_ = OneGauge(registry_, "flashbob_store_tensors", "Tensors that are kept under handles now.");
  stored_bytes_ = OneGauge(registry_, "flashbob_store_bytes", "Bytes that they take, or are promised.");
  store_limit_ = OneGauge(registry_, "flashbob_store_limit_bytes", "Most bytes that kept tensors may take.");
  certificate_expiry_ = OneGauge(registry_, "flashbob_tls_certificate_expiry_timestamp_seconds",
                                 "When the server's certificate expires, in seconds since 1970; 0 without TLS.");
  draining_ = OneGauge(registry_, "flashbob_draining", "1 once the server has been told to stop.");
  ready_ = OneGauge(registry_, "flashbob_ready", "1 while new requests are let in, 0 draining or without a device.");
  OneGauge(registry_, "flashbob_start_timestamp_seconds", "When the server started, in seconds since 1970.")
      ->SetToCurrentTime();
  resident_bytes_ = OneGauge(registry_, "flashbob_process_resident_bytes", "Memory of the process that is resident.");
  cpu_seconds_ = &Counters(registry_, "flashbob_process_cpu_seconds_total", "CPU time of the process.").Add({});
}

void ServerMetrics::SetGaugeSource(std::function<Gauges()> source) {
  MutexLock lock(mutex_);
  source_ = std::move(source);
}

void ServerMetrics::CountCall(Method method, absl::StatusCode code) {
  calls_[static_cast<size_t>(method)][CodeIndex(code)]->Increment();
}

void ServerMetrics::CountRequest(std::string_view tenant, std::optional<Operation> operation, absl::StatusCode code,
                                 Duration took) {
  tenants_.CountRequest(tenant, operation, code);
  if (operation.has_value() && code == absl::StatusCode::kOk) {
    durations_[static_cast<size_t>(*operation)]->Observe(ToSeconds(took));
  }
}

void ServerMetrics::CountError(std::string_view reason) {
  const auto found = errors_.find(reason);
  if (found != errors_.end()) found->second->Increment();
}

void ServerMetrics::Observe(Stage stage, Duration duration) {
  stages_[static_cast<size_t>(stage)]->Observe(ToSeconds(duration));
}

void ServerMetrics::AddBytesReceived(int64_t bytes) { bytes_received_->Increment(static_cast<double>(bytes)); }

void ServerMetrics::AddBytesSent(int64_t bytes) { bytes_sent_->Increment(static_cast<double>(bytes)); }

void ServerMetrics::CountSlice(size_t device, std::string_view tenant, Duration took, double flops) {
  devices_[device].slices->Increment();
  devices_[device].busy_seconds->Increment(ToSeconds(took));
  devices_[device].flops->Increment(flops);
  tenants_.AddDeviceTime(tenant, took);
}

void ServerMetrics::CountCopy(size_t device, Direction direction, int64_t bytes, Duration took) {
  const CopySeries& series = devices_[device].copies[static_cast<size_t>(direction)];
  series.bytes->Increment(static_cast<double>(bytes));
  series.seconds->Increment(ToSeconds(took));
}

void ServerMetrics::CountSplit(size_t parts) {
  requests_split_->Increment();
  split_parts_->Increment(static_cast<double>(parts));
}

std::vector<prometheus::MetricFamily> ServerMetrics::Collect() {
  {
    // Held during the read, so that SetGaugeSource(nullptr) returns only when nobody uses the old source any more.
    MutexLock lock(mutex_);
    if (source_) Refresh(source_());
    resident_bytes_->Set(ResidentBytes());
    cpu_seconds_->Increment(CpuSeconds() - cpu_seconds_->Value());
  }
  return registry_.Collect();
}

std::string ServerMetrics::Text() { return prometheus::TextSerializer().Serialize(Collect()); }

void ServerMetrics::Refresh(const Gauges& gauges) {
  for (size_t state = 0; state < in_state_.size(); ++state) {
    in_state_[state]->Set(static_cast<double>(gauges.requests[state]));
  }
  const auto in = [&](RequestState state) { return gauges.requests[static_cast<size_t>(state)]; };
  queue_depth_->Set(
      static_cast<double>(in(RequestState::kValidated) + in(RequestState::kReceiving) + in(RequestState::kReady)));
  queue_limit_->Set(static_cast<double>(gauges.queue_limit));
  calls_in_flight_->Set(static_cast<double>(gauges.calls_in_flight));
  host_limit_->Set(static_cast<double>(gauges.host_memory.limit_bytes));
  host_reserved_->Set(static_cast<double>(gauges.host_memory.reserved_bytes));
  host_used_->Set(static_cast<double>(gauges.host_memory.used_bytes));
  host_high_water_->Set(static_cast<double>(gauges.host_memory.high_water_bytes));
  host_largest_free_->Set(static_cast<double>(gauges.host_memory.largest_free_bytes));
  host_waiting_->Set(static_cast<double>(gauges.host_memory.waiting));
  stored_tensors_->Set(static_cast<double>(gauges.stored_tensors));
  stored_bytes_->Set(static_cast<double>(gauges.stored_bytes));
  store_limit_->Set(static_cast<double>(gauges.store_limit_bytes));
  certificate_expiry_->Set(gauges.certificate_expiry);
  draining_->Set(gauges.draining ? 1 : 0);
  ready_->Set(gauges.ready ? 1 : 0);
  for (size_t i = 0; i < devices_.size() && i < gauges.devices.size(); ++i) {
    devices_[i].limit_bytes->Set(static_cast<double>(gauges.devices[i].limit_bytes));
    devices_[i].reserved_bytes->Set(static_cast<double>(gauges.devices[i].reserved_bytes));
    devices_[i].high_water_bytes->Set(static_cast<double>(gauges.devices[i].high_water_bytes));
    devices_[i].largest_free_bytes->Set(static_cast<double>(gauges.devices[i].largest_free_bytes));
  }
  tenants_.SetUse(gauges.tenants);
}

}  // namespace flashbob::server
