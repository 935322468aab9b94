#include "server/metrics/server_metrics.h"

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
    case Stage::kCompute:
      return "compute";
    case Stage::kSend:
      return "send";
  }
  return "unknown";
}

absl::StatusCode CodeAt(int index) { return static_cast<absl::StatusCode>(index); }

size_t IndexOf(absl::StatusCode code) {
  const auto index = static_cast<size_t>(code);
  return index < kNumCodes ? index : static_cast<size_t>(absl::StatusCode::kUnknown);
}

}  // namespace

const char* CodeName(absl::StatusCode code) {
  static constexpr const char* kNames[kNumCodes] = {
      "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
      "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
      "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
      "DATA_LOSS", "UNAUTHENTICATED"};
  return kNames[IndexOf(code)];
}

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
  auto& requests =
      Counters(registry_, "flashbob_requests_total", "Compute requests that ended, by operation and gRPC code.");
  for (int code = 0; code < kNumCodes; ++code) {
    const std::string code_name = CodeName(CodeAt(code));
    for (int method = 0; method < kNumMethods; ++method) {
      calls_[static_cast<size_t>(method)][static_cast<size_t>(code)] =
          &calls.Add({{"method", Name(static_cast<Method>(method))}, {"code", code_name}});
    }
    for (size_t operation = 0; operation < requests_.size(); ++operation) {
      const bool known = operation < std::size(kAllOperations);
      requests_[operation][static_cast<size_t>(code)] = &requests.Add(
          {{"operation", known ? flashbob::Name(kAllOperations[operation]) : "none"}, {"code", code_name}});
    }
  }
  auto& errors = Counters(registry_, "flashbob_errors_total", "Calls that ended with an error, by its reason.");
  for (Reason reason : kAllReasons) errors_[server::Name(reason)] = &errors.Add({{"reason", server::Name(reason)}});

  auto& stages = prometheus::BuildHistogram()
                     .Name("flashbob_request_stage_seconds")
                     .Help("Time that computed requests spent receiving inputs, queueing, computing, sending outputs.")
                     .Register(registry_);
  const Histogram::BucketBoundaries bounds = {0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1,
                                              0.3,    1,      3,     10,    30,   100,  300};
  for (int stage = 0; stage < kNumStages; ++stage) {
    stages_[static_cast<size_t>(stage)] = &stages.Add({{"stage", Name(static_cast<Stage>(stage))}}, bounds);
  }
  bytes_received_ =
      &Counters(registry_, "flashbob_received_bytes_total", "Tensor bytes received from clients.").Add({});
  bytes_sent_ = &Counters(registry_, "flashbob_sent_bytes_total", "Tensor bytes sent to clients.").Add({});

  auto& slices = Counters(registry_, "flashbob_device_slices_total", "Slices of work that a device ran.");
  auto& busy = Counters(registry_, "flashbob_device_busy_seconds_total", "Time that a device spent in slices.");
  auto& flops = Counters(registry_, "flashbob_device_flops_total", "Floating-point operations that a device did.");
  auto& reserved = prometheus::BuildGauge()
                       .Name("flashbob_device_memory_reserved_bytes")
                       .Help("Device memory held by requests; 0 where host memory is device memory.")
                       .Register(registry_);
  for (const std::string& device : devices) {
    devices_.push_back({&slices.Add({{"device", device}}), &busy.Add({{"device", device}}),
                        &flops.Add({{"device", device}}), &reserved.Add({{"device", device}})});
  }

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
  draining_ = OneGauge(registry_, "flashbob_draining", "1 once the server has been told to stop.");
  prometheus::BuildGauge()
      .Name("flashbob_build_info")
      .Help("Always 1; the label says which build this is.")
      .Register(registry_)
      .Add({{"version", version}})
      .Set(1);
}

void ServerMetrics::SetGaugeSource(std::function<Gauges()> source) {
  MutexLock lock(mutex_);
  source_ = std::move(source);
}

void ServerMetrics::CountCall(Method method, absl::StatusCode code) {
  calls_[static_cast<size_t>(method)][IndexOf(code)]->Increment();
}

void ServerMetrics::CountRequest(std::optional<Operation> operation, absl::StatusCode code) {
  const size_t row = operation.has_value() ? static_cast<size_t>(*operation) : std::size(kAllOperations);
  requests_[row][IndexOf(code)]->Increment();
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

void ServerMetrics::CountSlice(size_t device, Duration took, double flops) {
  devices_[device].slices->Increment();
  devices_[device].busy_seconds->Increment(ToSeconds(took));
  devices_[device].flops->Increment(flops);
}

std::vector<prometheus::MetricFamily> ServerMetrics::Collect() const {
  {
    // Held during the read, so that SetGaugeSource(nullptr) returns only when nobody uses the old source any more.
    MutexLock lock(mutex_);
    if (source_) Refresh(source_());
  }
  return registry_.Collect();
}

void ServerMetrics::Refresh(const Gauges& gauges) const {
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
  draining_->Set(gauges.draining ? 1 : 0);
  for (size_t i = 0; i < devices_.size() && i < gauges.device_reserved_bytes.size(); ++i) {
    devices_[i].reserved_bytes->Set(static_cast<double>(gauges.device_reserved_bytes[i]));
  }
}

}  // namespace flashbob::server
