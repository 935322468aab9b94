#include "server/memory/host_memory_pool.h"

#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"
#include "server/base/errors.h"

namespace flashbob::server {

Reservation& Reservation::operator=(Reservation&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Reservation::~Reservation() {
  if (pool_ != nullptr && bytes_ > 0) pool_->Unreserve(bytes_);
}

HostBuffer& HostBuffer::operator=(HostBuffer&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

HostBuffer::~HostBuffer() {
  if (data_ != nullptr) pool_->Release(data_, bytes_);
}

HostMemoryPool::HostMemoryPool(Engine& engine, const Clock& clock, int64_t limit_bytes)
    : engine_(engine), clock_(clock), limit_bytes_(limit_bytes) {}

HostMemoryPool::~HostMemoryPool() {
  Blocks blocks;
  {
    MutexLock lock(mutex_);
    blocks = EvictLocked(0);
  }
  FreeAll(blocks);
}

int64_t HostMemoryPool::BlockBytes(int64_t bytes) {
  if (bytes <= 0) return 0;
  // Eight classes a doubling: at most an eighth is lost, and blocks of nearly the same size serve each other.
  constexpr int64_t kPage = 4096;
  const auto power = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(bytes)));
  const int64_t granule = std::max(kPage, power / 8);
  return (bytes + granule - 1) / granule * granule;
}

std::optional<Reservation> HostMemoryPool::TryReserve(int64_t bytes) {
  MutexLock lock(mutex_);
  if (!waiters_.empty() || !Fits(bytes)) return std::nullopt;
  return ReserveLocked(bytes);
}

std::optional<Reservation> HostMemoryPool::Reserve(int64_t bytes, const std::atomic<bool>& withdrawn) {
  if (bytes > limit_bytes_) return std::nullopt;
  const char token = 0;  // its address names this call
  MutexLock lock(mutex_);
  waiters_.push_back(&token);
  while (!withdrawn && (waiters_.front() != &token || !Fits(bytes))) changed_.Wait(mutex_);
  waiters_.erase(std::find(waiters_.begin(), waiters_.end(), &token));
  changed_.NotifyAll();  // for whoever is first now
  if (withdrawn) return std::nullopt;
  return ReserveLocked(bytes);
}

void HostMemoryPool::WakeWaiters() {
  MutexLock lock(mutex_);
  ChangedLocked();
}

std::optional<Reservation> HostMemoryPool::TryReserveFirst(int64_t bytes) {
  MutexLock lock(mutex_);
  if (!Fits(bytes)) return std::nullopt;
  return ReserveLocked(bytes);
}

uint64_t HostMemoryPool::Changes() const {
  MutexLock lock(mutex_);
  return changes_;
}

void HostMemoryPool::WaitForChange(uint64_t since) {
  const char token = 0;  // its address names this call
  MutexLock lock(mutex_);
  waiters_.push_front(&token);
  while (changes_ == since) changed_.Wait(mutex_);
  waiters_.erase(std::find(waiters_.begin(), waiters_.end(), &token));
  changed_.NotifyAll();  // for whoever is first now
}

void HostMemoryPool::ChangedLocked() {
  ++changes_;
  changed_.NotifyAll();
}

absl::StatusOr<HostBuffer> HostMemoryPool::Allocate(Reservation& reservation, int64_t bytes) {
  const int64_t block_bytes = BlockBytes(bytes);
  if (block_bytes == 0) return HostBuffer();
  if (block_bytes > reservation.bytes_) {
    return absl::InternalError(
        absl::StrCat("a block of ", block_bytes, " bytes from a reservation of ", reservation.bytes_));
  }
  Blocks evicted;
  {
    MutexLock lock(mutex_);
    live_ += block_bytes;
    const auto cached = free_.find(block_bytes);
    if (cached != free_.end()) {
      void* const data = cached->second.back().data;
      cached->second.pop_back();
      if (cached->second.empty()) free_.erase(cached);
      cached_ -= block_bytes;
      reservation.bytes_ -= block_bytes;
      return HostBuffer(this, data, bytes);
    }
    evicted = EvictLocked(std::max<int64_t>(limit_bytes_ - live_, 0));
  }
  FreeAll(evicted);
  absl::StatusOr<void*> data = engine_.AllocateHost(static_cast<size_t>(block_bytes));
  if (absl::IsResourceExhausted(data.status())) {  // what lies in the cache may be what is lacking
    Trim(TimePoint::max());
    data = engine_.AllocateHost(static_cast<size_t>(block_bytes));
  }
  if (!data.ok()) {
    MutexLock lock(mutex_);
    live_ -= block_bytes;
    if (!absl::IsResourceExhausted(data.status())) return data.status();
    return RetryableError(Reason::kQueueFull,
                          absl::StrCat("this machine has no ", block_bytes, " bytes of host memory left, though ",
                                       limit_bytes_, " are configured: ", std::string(data.status().message())),
                          std::chrono::seconds(1));
  }
  reservation.bytes_ -= block_bytes;
  return HostBuffer(this, *data, bytes);
}

bool HostMemoryPool::HasCached(const std::vector<int64_t>& bytes) const {
  std::map<int64_t, size_t> wanted;  // blocks of each size class
  for (int64_t each : bytes) {
    if (each > 0) ++wanted[BlockBytes(each)];
  }
  MutexLock lock(mutex_);
  for (const auto& [block_bytes, count] : wanted) {
    const auto cached = free_.find(block_bytes);
    if (cached == free_.end() || cached->second.size() < count) return false;
  }
  return true;
}

void HostMemoryPool::Trim(TimePoint unused_since) {
  Blocks blocks;
  {
    MutexLock lock(mutex_);
    for (auto entry = free_.begin(); entry != free_.end();) {
      auto& [block_bytes, of_class] = *entry;
      const auto first_kept = std::find_if(of_class.begin(), of_class.end(),
                                           [&](const FreeBlock& block) { return block.freed >= unused_since; });
      for (auto block = of_class.begin(); block != first_kept; ++block) blocks.push_back(block->data);
      cached_ -= block_bytes * (first_kept - of_class.begin());
      of_class.erase(of_class.begin(), first_kept);
      entry = of_class.empty() ? free_.erase(entry) : std::next(entry);
    }
  }
  FreeAll(blocks);
}

PoolUse HostMemoryPool::Use() const {
  MutexLock lock(mutex_);
  PoolUse use;
  use.limit_bytes = limit_bytes_;
  use.reserved_bytes = reserved_;
  use.used_bytes = live_ + cached_;
  use.high_water_bytes = high_water_;
  use.largest_free_bytes = limit_bytes_ - reserved_;
  use.waiting = static_cast<int64_t>(waiters_.size());
  return use;
}

Reservation HostMemoryPool::ReserveLocked(int64_t bytes) {
  reserved_ += bytes;
  high_water_ = std::max(high_water_, reserved_);
  return Reservation(this, bytes);
}

void HostMemoryPool::Unreserve(int64_t bytes) {
  MutexLock lock(mutex_);
  reserved_ -= bytes;
  ChangedLocked();
}

void HostMemoryPool::Release(void* data, int64_t bytes) {
  const int64_t block_bytes = BlockBytes(bytes);
  const TimePoint now = clock_.Now();
  MutexLock lock(mutex_);
  free_[block_bytes].push_back({data, now});
  live_ -= block_bytes;
  cached_ += block_bytes;
  reserved_ -= block_bytes;
  ChangedLocked();
}

HostMemoryPool::Blocks HostMemoryPool::EvictLocked(int64_t keep) {
  Blocks blocks;
  while (cached_ > keep) {
    const auto largest = std::prev(free_.end());
    blocks.push_back(largest->second.front().data);
    cached_ -= largest->first;
    largest->second.erase(largest->second.begin());
    if (largest->second.empty()) free_.erase(largest);
  }
  return blocks;
}

void HostMemoryPool::FreeAll(const Blocks& blocks) {
  for (void* block : blocks) engine_.FreeHost(block);
}

}  // namespace flashbob::server
