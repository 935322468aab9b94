#include "server/metrics/tenant_metrics.h"

#include <algorithm>

#include "server/metrics/code_name.h"

namespace flashbob::server {
namespace {

constexpr char kOther[] = "other";

// Those that a Compute call of a known tenant can end with; all others count as UNKNOWN.
constexpr absl::StatusCode kRequestCodes[] = {
    absl::StatusCode::kOk,
    absl::StatusCode::kCancelled,
    absl::StatusCode::kUnknown,
    absl::StatusCode::kInvalidArgument,
    absl::StatusCode::kDeadlineExceeded,
    absl::StatusCode::kNotFound,
    absl::StatusCode::kResourceExhausted,
    absl::StatusCode::kFailedPrecondition,
    absl::StatusCode::kUnimplemented,
    absl::StatusCode::kInternal,
    absl::StatusCode::kUnavailable,
};

}  // namespace

TenantMetrics::TenantMetrics(prometheus::Registry& registry)
    : requests_(prometheus::BuildCounter()
                    .Name("flashbob_requests_total")
                    .Help("Compute requests that ended, by tenant, operation and gRPC code.")
                    .Register(registry)),
      device_seconds_(prometheus::BuildCounter()
                          .Name("flashbob_tenant_device_seconds_total")
                          .Help("Time that devices worked for a tenant.")
                          .Register(registry)),
      held_bytes_(prometheus::BuildGauge()
                      .Name("flashbob_tenant_held_bytes")
                      .Help("Bytes that a tenant's requests and stored tensors hold now.")
                      .Register(registry)),
      in_flight_(prometheus::BuildGauge()
                     .Name("flashbob_tenant_requests_in_flight")
                     .Help("Compute requests of a tenant that have not ended.")
                     .Register(registry)) {}

void TenantMetrics::Add(const std::string& tenant) {
  MutexLock lock(mutex_);
  if (series_.find(tenant) != series_.end()) return;
  const std::string label = series_.size() < kMostTenants ? tenant : kOther;
  if (series_.find(label) == series_.end()) series_.emplace(label, Make(label));
}

void TenantMetrics::CountRequest(std::string_view tenant, std::optional<Operation> operation, absl::StatusCode code) {
  const size_t row = operation.has_value() ? static_cast<size_t>(*operation) : std::size(kAllOperations);
  MutexLock lock(mutex_);
  Of(tenant).requests[row][CodeIndex(code)]->Increment();
}

void TenantMetrics::AddDeviceTime(std::string_view tenant, Duration took) {
  MutexLock lock(mutex_);
  Of(tenant).device_seconds->Increment(ToSeconds(took));
}

void TenantMetrics::SetUse(const std::vector<Use>& uses) {
  MutexLock lock(mutex_);
  for (auto& [tenant, series] : series_) {
    series.held_bytes->Set(0);
    series.in_flight->Set(0);
  }
  for (const Use& use : uses) {
    Series& series = Of(use.tenant);
    series.held_bytes->Increment(static_cast<double>(use.bytes));
    series.in_flight->Increment(static_cast<double>(use.in_flight));
  }
}

TenantMetrics::Series TenantMetrics::Make(const std::string& tenant) {
  Series series;
  for (size_t row = 0; row < series.requests.size(); ++row) {
    const char* operation = row < std::size(kAllOperations) ? Name(kAllOperations[row]) : "none";
    const auto counter = [&](absl::StatusCode code) {
      return &requests_.Add({{"tenant", tenant}, {"operation", operation}, {"code", CodeName(code)}});
    };
    series.requests[row].assign(kNumCodes, counter(absl::StatusCode::kUnknown));
    for (absl::StatusCode code : kRequestCodes) series.requests[row][CodeIndex(code)] = counter(code);
  }
  series.device_seconds = &device_seconds_.Add({{"tenant", tenant}});
  series.held_bytes = &held_bytes_.Add({{"tenant", tenant}});
  series.in_flight = &in_flight_.Add({{"tenant", tenant}});
  return series;
}

TenantMetrics::Series& TenantMetrics::Of(std::string_view tenant) {
  auto found = series_.find(tenant);
  if (found == series_.end()) found = series_.find(std::string_view(kOther));
  if (found == series_.end()) found = series_.emplace(kOther, Make(kOther)).first;
  return found->second;
}

}  // namespace flashbob::server
