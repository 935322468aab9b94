// Tenant: one of those who share a server, its settings, and the count of what it holds.
#ifndef FLASHBOB_SERVER_AUTH_TENANT_H_
#define FLASHBOB_SERVER_AUTH_TENANT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "kernels/base/mutex.h"

namespace flashbob::server {

class Tenant;

// What a request or a stored tensor holds of its tenant's quota. Move-only; gives it back on destruction.
class TenantHold {
 public:
  TenantHold() = default;
  TenantHold(TenantHold&& other) noexcept
      : tenant_(std::move(other.tenant_)),
        bytes_(std::exchange(other.bytes_, 0)),
        requests_(std::exchange(other.requests_, 0)) {}
  TenantHold& operator=(TenantHold&& other) noexcept;
  ~TenantHold();
  int64_t bytes() const { return bytes_; }
  // Takes some of the bytes out, to be held on their own.
  TenantHold Split(int64_t bytes);

 private:
  friend class Tenant;
  TenantHold(std::shared_ptr<Tenant> tenant, int64_t bytes, int64_t requests)
      : tenant_(std::move(tenant)), bytes_(bytes), requests_(requests) {}

  std::shared_ptr<Tenant> tenant_;
  int64_t bytes_ = 0;
  int64_t requests_ = 0;
};

// Thread safety: any thread. Shared by the registry and all that holds something of it.
class Tenant : public std::enable_shared_from_this<Tenant> {
 public:
  struct Settings {
    std::string name = "default";
    double weight = 1;
    int priority = 0;
    int64_t max_bytes = 0;      // 0: no bound
    int64_t max_in_flight = 0;  // 0: no bound
  };
  struct Use {
    int64_t bytes = 0;
    int64_t in_flight = 0;
  };

  static std::shared_ptr<Tenant> Create(Settings settings);

  // As they are now.
  Settings settings() const;
  const std::string& name() const { return name_; }
  // Changes all but the name. What is held stays held, also where that is more than is now allowed.
  void Update(const Settings& settings);

  // RESOURCE_EXHAUSTED, QUOTA, where that is too much now; FAILED_PRECONDITION, TOO_LARGE, where it always is.
  absl::StatusOr<TenantHold> Hold(int64_t bytes, int64_t requests);

  Use GetUse() const;

 private:
  friend class TenantHold;
  explicit Tenant(Settings settings) : name_(settings.name), settings_(std::move(settings)) {}
  void GiveBack(int64_t bytes, int64_t requests) FLASHBOB_EXCLUDES(mutex_);

  const std::string name_;
  mutable Mutex mutex_;
  Settings settings_ FLASHBOB_GUARDED_BY(mutex_);
  Use use_ FLASHBOB_GUARDED_BY(mutex_);
};

}  // namespace flashbob::server

#endif  // FLASHBOB_SERVER_AUTH_TENANT_H_
