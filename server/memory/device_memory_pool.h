// DeviceMemoryPool: how much of one device's memory is promised to requests. The memory itself comes from
// Engine::Allocate, which on a GPU is a stream-ordered pool; this count keeps it from ever being asked for more than
// the limit.
//
//   limit >= reserved = sum of DeviceReservations
//   limit - limit / 8 >= reserved by large requests: an eighth is kept for small ones
//
// Nobody waits in here: who gets memory next is the scheduler's to say. Thread safety: any thread. The pool must
// outlive its reservations.
#ifndef FLASHBOB_SERVER_MEMORY_DEVICE_MEMORY_POOL_H_
#define FLASHBOB_SERVER_MEMORY_DEVICE_MEMORY_POOL_H_

#include <cstdint>
#include <optional>
#include <utility>

#include "kernels/base/mutex.h"

namespace flashbob::server {

class DeviceMemoryPool;

// The right to so many bytes of a device. Move-only; gives them back on destruction.
class DeviceReservation {
 public:
  DeviceReservation() = default;
  DeviceReservation(DeviceReservation&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  DeviceReservation& operator=(DeviceReservation&& other) noexcept;
  ~DeviceReservation();
  int64_t bytes() const { return bytes_; }

 private:
  friend class DeviceMemoryPool;
  DeviceReservation(DeviceMemoryPool* pool, int64_t bytes) : pool_(pool), bytes_(bytes) {}

  DeviceMemoryPool* pool_ = nullptr;
  int64_t bytes_ = 0;
};

class DeviceMemoryPool {
 public:
  static constexpr int64_t kSmallRequestBytes = int64_t{64} << 20;

  // Which part of the memory a request may take. While a large request has waited too long, all that becomes free is
  // its own, and small ones make do with what is kept for them.
  enum class Part : uint8_t { kAny, kKeptForSmall };

  struct Use {
    int64_t limit_bytes = 0;
    int64_t reserved_bytes = 0;
    int64_t high_water_bytes = 0;
    int64_t largest_free_bytes = 0;  // the largest request that could have memory now
  };

  explicit DeviceMemoryPool(int64_t limit_bytes) : limit_bytes_(limit_bytes), kept_bytes_(limit_bytes / 8) {}

  static bool IsSmall(int64_t bytes) { return bytes < kSmallRequestBytes; }
  // The most that one request can ever have.
  int64_t LargestRequest() const;

  std::optional<DeviceReservation> TryReserve(int64_t bytes, Part part = Part::kAny);

  Use GetUse() const;

 private:
  friend class DeviceReservation;
  void Unreserve(int64_t bytes) FLASHBOB_EXCLUDES(mutex_);
  int64_t FreeForLarge() const FLASHBOB_REQUIRES(mutex_);

  const int64_t limit_bytes_;
  const int64_t kept_bytes_;

  mutable Mutex mutex_;
  int64_t small_ FLASHBOB_GUARDED_BY(mutex_) = 0;  // reserved by small requests
  int64_t large_ FLASHBOB_GUARDED_BY(mutex_) = 0;  // by the others
  int64_t high_water_ FLASHBOB_GUARDED_BY(mutex_) = 0;
};

}  // namespace flashbob::server

#endif  // FLASHBOB_SERVER_MEMORY_DEVICE_MEMORY_POOL_H_
