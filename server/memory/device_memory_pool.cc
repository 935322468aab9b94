#include "server/memory/device_memory_pool.h"

#include <algorithm>

namespace flashbob::server {

DeviceReservation& DeviceReservation::operator=(DeviceReservation&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

DeviceReservation::~DeviceReservation() {
  if (pool_ != nullptr && bytes_ > 0) pool_->Unreserve(bytes_);
}

int64_t DeviceMemoryPool::LargestRequest() const {
  // On a device so small that what is left for large requests would be none, a small one may have all.
  return std::max(limit_bytes_ - kept_bytes_, std::min(limit_bytes_, kSmallRequestBytes - 1));
}

std::optional<DeviceReservation> DeviceMemoryPool::TryReserve(int64_t bytes, Part part) {
  MutexLock lock(mutex_);
  const bool small = IsSmall(bytes);
  const bool fits = small ? bytes <= limit_bytes_ - small_ - large_ : bytes <= FreeForLarge();
  if (!fits) return std::nullopt;
  if (part == Part::kKeptForSmall && (!small || small_ + bytes > kept_bytes_)) return std::nullopt;
  (small ? small_ : large_) += bytes;
  high_water_ = std::max(high_water_, small_ + large_);
  return DeviceReservation(this, bytes);
}

DeviceMemoryPool::Use DeviceMemoryPool::GetUse() const {
  MutexLock lock(mutex_);
  Use use;
  use.limit_bytes = limit_bytes_;
  use.reserved_bytes = small_ + large_;
  use.high_water_bytes = high_water_;
  const int64_t free = limit_bytes_ - use.reserved_bytes;
  use.largest_free_bytes = std::max(FreeForLarge(), std::min(free, kSmallRequestBytes - 1));
  return use;
}

void DeviceMemoryPool::Unreserve(int64_t bytes) {
  MutexLock lock(mutex_);
  (IsSmall(bytes) ? small_ : large_) -= bytes;
}

int64_t DeviceMemoryPool::FreeForLarge() const {
  return std::min(limit_bytes_ - small_ - large_, limit_bytes_ - kept_bytes_ - large_);
}

}  // namespace flashbob::server
