#include "server/auth/tenant.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/base/errors.h"

namespace flashbob::server {
namespace {

// When something of a tenant's is likely to have ended.
constexpr Duration kRetryDelay = std::chrono::milliseconds(500);

}  // namespace

TenantHold& TenantHold::operator=(TenantHold&& other) noexcept {
  std::swap(tenant_, other.tenant_);
  std::swap(bytes_, other.bytes_);
  std::swap(requests_, other.requests_);
  return *this;
}

TenantHold::~TenantHold() {
  if (tenant_ != nullptr) tenant_->GiveBack(bytes_, requests_);
}

TenantHold TenantHold::Split(int64_t bytes) {
  const int64_t taken = std::min(bytes, bytes_);
  bytes_ -= taken;
  return TenantHold(tenant_, taken, 0);
}

std::shared_ptr<Tenant> Tenant::Create(Settings settings) {
  return std::shared_ptr<Tenant>(new Tenant(std::move(settings)));
}

absl::StatusOr<TenantHold> Tenant::Hold(int64_t bytes, int64_t requests) {
  {
    MutexLock lock(mutex_);
    const int64_t max_bytes = settings_.max_bytes;
    const int64_t max_in_flight = settings_.max_in_flight;
    if (max_bytes > 0 && bytes > max_bytes) {
      return Error(Reason::kTooLarge,
                   absl::StrCat("this takes ", bytes, " bytes; tenant ", name_, " may hold ", max_bytes),
                   {{"needed_bytes", bytes}, {"limit_bytes", max_bytes}});
    }
    if (max_bytes > 0 && bytes > max_bytes - use_.bytes) {
      return RetryableError(Reason::kQuota,
                            absl::StrCat("tenant ", name_, " holds ", use_.bytes, " of ", max_bytes,
                                         " bytes; this takes ", bytes, " more"),
                            kRetryDelay, {{"used_bytes", use_.bytes}, {"limit_bytes", max_bytes}});
    }
    if (max_in_flight > 0 && requests > max_in_flight - use_.in_flight) {
      return RetryableError(
          Reason::kQuota,
          absl::StrCat("tenant ", name_, " has ", use_.in_flight, " requests in flight of ", max_in_flight),
          kRetryDelay, {{"in_flight", use_.in_flight}, {"max_in_flight", max_in_flight}});
    }
    use_.bytes += bytes;
    use_.in_flight += requests;
  }
  return TenantHold(shared_from_this(), bytes, requests);
}

Tenant::Settings Tenant::settings() const {
  MutexLock lock(mutex_);
  return settings_;
}

void Tenant::Update(const Settings& settings) {
  MutexLock lock(mutex_);
  settings_ = settings;
  settings_.name = name_;
}

Tenant::Use Tenant::GetUse() const {
  MutexLock lock(mutex_);
  return use_;
}

void Tenant::GiveBack(int64_t bytes, int64_t requests) {
  MutexLock lock(mutex_);
  use_.bytes -= bytes;
  use_.in_flight -= requests;
}

}  // namespace flashbob::server
