#include "server/store/tensor_store.h"

#include <openssl/rand.h>

#include <algorithm>
#include <cstdlib>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/base/errors.h"

namespace flashbob::server {
namespace {

constexpr Duration kRetryDelay = std::chrono::seconds(1);

constexpr size_t kHandleBytes = 16;

}  // namespace

StoreRoom& StoreRoom::operator=(StoreRoom&& other) noexcept {
  std::swap(store_, other.store_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

StoreRoom::~StoreRoom() {
  if (store_ != nullptr && bytes_ > 0) store_->GiveUp(bytes_);
}

TensorStore::TensorStore(const Clock& clock, Options options) : clock_(clock), options_(std::move(options)) {}

absl::StatusOr<StoreRoom> TensorStore::Reserve(int64_t bytes) {
  if (bytes > options_.max_bytes) {
    return Error(
        Reason::kTooLarge,
        absl::StrCat("tensors of ", bytes, " bytes to keep; this server keeps ", options_.max_bytes, " in all"),
        {{"needed_bytes", bytes}, {"limit_bytes", options_.max_bytes}});
  }
  const TimePoint now = clock_.Now();
  std::vector<Entry> expired;
  MutexLock lock(mutex_);
  if (bytes > options_.max_bytes - bytes_) expired = TakeExpiredLocked(now);
  if (bytes > options_.max_bytes - bytes_) {
    return RetryableError(
        Reason::kQueueFull,
        absl::StrCat("the store holds ", bytes_, " of ", options_.max_bytes, " bytes; this takes ", bytes, " more"),
        kRetryDelay, {{"used_bytes", bytes_}, {"limit_bytes", options_.max_bytes}});
  }
  bytes_ += bytes;
  return StoreRoom(this, bytes);
}

std::string TensorStore::Put(const Tenant& tenant, StoreRoom& room, Item item) {
  const int64_t bytes = HostMemoryPool::BlockBytes(item.bytes.bytes());
  Entry entry;
  entry.tenant = &tenant;
  entry.once = absl::StrCat(tenant.name(), "\n", item.request_id, "\n", Name(item.info.name));
  entry.tensor = {std::move(item.info), std::make_shared<const HostBuffer>(std::move(item.bytes))};
  entry.hold = std::move(item.hold);
  entry.bytes = bytes;
  entry.lease = item.lease > Duration(0) ? std::min(item.lease, options_.max_lease) : options_.default_lease;
  const TimePoint now = clock_.Now();
  entry.expires = now + entry.lease;
  std::vector<Entry> dropped;
  MutexLock lock(mutex_);
  const auto before = by_request_.find(entry.once);
  if (before != by_request_.end()) {
    const auto stored = entries_.find(before->second);
    if (stored->second.expires > now) {
      stored->second.expires = now + stored->second.lease;
      const std::string handle = stored->first;
      dropped.push_back(std::move(entry));
      return handle;
    }
    dropped.push_back(TakeLocked(stored));
  }
  room.bytes_ -= bytes;  // from now on it is the entry's
  const std::string handle = NewHandleLocked();
  by_request_[entry.once] = handle;
  entries_.emplace(handle, std::move(entry));
  return handle;
}

absl::StatusOr<StoredTensor> TensorStore::Get(const Tenant& tenant, const std::string& handle) {
  const TimePoint now = clock_.Now();
  MutexLock lock(mutex_);
  const auto found = entries_.find(handle);
  if (found == entries_.end() || found->second.tenant != &tenant || found->second.expires <= now) {
    return Error(Reason::kHandle, "the handle is unknown or its lease is over: send the tensor again");
  }
  found->second.expires = now + found->second.lease;
  return found->second.tensor;
}

int64_t TensorStore::Delete(const Tenant& tenant, const std::vector<std::string>& handles) {
  const TimePoint now = clock_.Now();
  std::vector<Entry> taken;
  int64_t deleted = 0;
  MutexLock lock(mutex_);
  for (const std::string& handle : handles) {
    const auto found = entries_.find(handle);
    if (found == entries_.end() || found->second.tenant != &tenant) continue;
    if (found->second.expires > now) ++deleted;
    taken.push_back(TakeLocked(found));
  }
  return deleted;
}

void TensorStore::DropExpired() {
  const TimePoint now = clock_.Now();
  std::vector<Entry> expired;
  MutexLock lock(mutex_);
  expired = TakeExpiredLocked(now);
}

TensorStore::Use TensorStore::GetUse() const {
  MutexLock lock(mutex_);
  return {static_cast<int64_t>(entries_.size()), bytes_, options_.max_bytes};
}

std::string TensorStore::NewHandleLocked() {
  if (random_.empty()) {
    random_.resize(64 * kHandleBytes);
    // Without random numbers there are no secrets: better no server.
    if (RAND_bytes(reinterpret_cast<unsigned char*>(random_.data()), static_cast<int>(random_.size())) != 1)
      std::abort();
  }
  const std::string bytes = random_.substr(random_.size() - kHandleBytes);
  random_.resize(random_.size() - kHandleBytes);
  return absl::StrCat(options_.server, ".", absl::BytesToHexString(bytes));
}

void TensorStore::GiveUp(int64_t bytes) {
  MutexLock lock(mutex_);
  bytes_ -= bytes;
}

std::vector<TensorStore::Entry> TensorStore::TakeExpiredLocked(TimePoint now) {
  std::vector<Entry> expired;
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    const auto next = std::next(entry);
    if (entry->second.expires <= now) expired.push_back(TakeLocked(entry));
    entry = next;
  }
  return expired;
}

TensorStore::Entry TensorStore::TakeLocked(Entries::iterator entry) {
  Entry taken = std::move(entry->second);
  by_request_.erase(taken.once);
  bytes_ -= taken.bytes;
  entries_.erase(entry);
  return taken;
}

}  // namespace flashbob::server
