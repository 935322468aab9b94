// HostMemoryPool: the host memory that requests' inputs and outputs lie in, under a reservation count.
//
//   limit >= reserved = sum of Reservations + sum of live HostBuffers
//   limit >= allocated = live HostBuffers + cached free blocks
//
// A Reservation is the right to so many bytes; Allocate turns a part of it into a HostBuffer, which gives its share
// back to the pool when it is destroyed. Blocks come from Engine::AllocateHost in size classes (page locking is slow,
// and so is faulting pages in) and are kept for reuse; they go back to the engine when room is needed, or by Trim.
//
// Thread safety: any thread. Reserve blocks: never call it from a gRPC reaction. The pool must outlive what it gave
// out.
#ifndef FLASHBOB_SERVER_MEMORY_HOST_MEMORY_POOL_H_
#define FLASHBOB_SERVER_MEMORY_HOST_MEMORY_POOL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/mutex.h"
#include "kernels/engine.h"
#include "server/base/clock.h"

namespace flashbob::server {

class HostMemoryPool;

// The right to allocate so many bytes of a pool. Move-only; gives them back on destruction.
class Reservation {
 public:
  Reservation() = default;
  Reservation(Reservation&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Reservation& operator=(Reservation&& other) noexcept;
  ~Reservation();
  int64_t bytes() const { return bytes_; }

 private:
  friend class HostMemoryPool;
  Reservation(HostMemoryPool* pool, int64_t bytes) : pool_(pool), bytes_(bytes) {}

  HostMemoryPool* pool_ = nullptr;
  int64_t bytes_ = 0;
};

// Host memory aligned to kTensorAlignment, contents undefined. Move-only; gives it back on destruction.
class HostBuffer {
 public:
  HostBuffer() = default;
  HostBuffer(HostBuffer&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)),
        data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)) {}
  HostBuffer& operator=(HostBuffer&& other) noexcept;
  ~HostBuffer();
  // Null where bytes() is 0.
  std::byte* data() const { return static_cast<std::byte*>(data_); }
  int64_t bytes() const { return bytes_; }

 private:
  friend class HostMemoryPool;
  HostBuffer(HostMemoryPool* pool, void* data, int64_t bytes) : pool_(pool), data_(data), bytes_(bytes) {}

  HostMemoryPool* pool_ = nullptr;
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

struct PoolUse {
  int64_t limit_bytes = 0;
  int64_t reserved_bytes = 0;
  int64_t used_bytes = 0;        // really allocated, cached blocks included
  int64_t high_water_bytes = 0;  // the most that was ever reserved
  int64_t largest_free_bytes = 0;
  int64_t waiting = 0;  // calls of Reserve and WaitForChange that wait now
};

class HostMemoryPool {
 public:
  // `engine` allocates the blocks; it and `clock` must outlive the pool.
  HostMemoryPool(Engine& engine, const Clock& clock, int64_t limit_bytes);
  ~HostMemoryPool();
  HostMemoryPool(const HostMemoryPool&) = delete;
  HostMemoryPool& operator=(const HostMemoryPool&) = delete;

  // What a buffer of `bytes` counts as: its size class. 0 for 0.
  static int64_t BlockBytes(int64_t bytes);

  int64_t limit_bytes() const { return limit_bytes_; }

  // Reserves `bytes` where that is possible now and nobody waits for memory; else nothing.
  std::optional<Reservation> TryReserve(int64_t bytes);

  // Waits until `bytes` can be reserved, in the order of calls. Nothing where `withdrawn` became true (follow that with
  // WakeWaiters) or where `bytes` is more than the limit.
  std::optional<Reservation> Reserve(int64_t bytes, const std::atomic<bool>& withdrawn);
  void WakeWaiters();

  // For one that has several requests waiting and chooses among them itself: it tries, passing the calls of Reserve,
  // and where none fits waits for a change since before it tried. Meanwhile TryReserve gives nobody any.
  std::optional<Reservation> TryReserveFirst(int64_t bytes);
  uint64_t Changes() const;  // grows when memory is given back and with WakeWaiters
  void WaitForChange(uint64_t since);

  // A buffer whose block is taken out of `reservation`, which must have BlockBytes(bytes) left.
  // RESOURCE_EXHAUSTED where the machine does not have them, though the limit allows them; the engine's error where it
  // fails for other reasons, as that of a GPU does whose device is lost.
  absl::StatusOr<HostBuffer> Allocate(Reservation& reservation, int64_t bytes);

  // Whether buffers of these sizes, all at once, would come out of the cache, with no call of the engine's, which for
  // page-locked memory takes milliseconds.
  bool HasCached(const std::vector<int64_t>& bytes) const;

  // Gives cached blocks back that nobody used since `time`.
  void Trim(TimePoint unused_since);

  PoolUse Use() const;

 private:
  friend class Reservation;
  friend class HostBuffer;

  struct FreeBlock {
    void* data;
    TimePoint freed;
  };
  using Blocks = std::vector<void*>;

  void Unreserve(int64_t bytes) FLASHBOB_EXCLUDES(mutex_);
  void Release(void* data, int64_t bytes) FLASHBOB_EXCLUDES(mutex_);
  Reservation ReserveLocked(int64_t bytes) FLASHBOB_REQUIRES(mutex_);
  void ChangedLocked() FLASHBOB_REQUIRES(mutex_);
  bool Fits(int64_t bytes) const FLASHBOB_REQUIRES(mutex_) { return bytes <= limit_bytes_ - reserved_; }
  // Takes cached blocks out, the largest first, until at most `keep` bytes are cached; the caller frees them.
  Blocks EvictLocked(int64_t keep) FLASHBOB_REQUIRES(mutex_);
  void FreeAll(const Blocks& blocks);

  Engine& engine_;
  const Clock& clock_;
  const int64_t limit_bytes_;

  mutable Mutex mutex_;
  CondVar changed_;
  int64_t reserved_ FLASHBOB_GUARDED_BY(mutex_) = 0;
  int64_t high_water_ FLASHBOB_GUARDED_BY(mutex_) = 0;
  int64_t live_ FLASHBOB_GUARDED_BY(mutex_) = 0;                                // in HostBuffers
  int64_t cached_ FLASHBOB_GUARDED_BY(mutex_) = 0;                              // in free_
  std::map<int64_t, std::vector<FreeBlock>> free_ FLASHBOB_GUARDED_BY(mutex_);  // by size class, latest freed last
  std::deque<const void*> waiters_ FLASHBOB_GUARDED_BY(mutex_);                 // one token a call that waits
  uint64_t changes_ FLASHBOB_GUARDED_BY(mutex_) = 0;
};

}  // namespace flashbob::server

#endif  // FLASHBOB_SERVER_MEMORY_HOST_MEMORY_POOL_H_
