// TensorStore: tensors that stay on the server between calls, in host memory, each under a handle.
//
// A handle belongs to one tenant and lives as long as its lease, which every use renews; after that it is as unknown as
// one that never was. It is SERVER.RANDOM: the server that keeps it, so that a router can follow it, and 128 random
// bits. Live leases are never dropped. A request that reads a tensor keeps its bytes until it is done, whatever becomes
// of the handle.
//
// Thread safety: any thread. The store must outlive the Rooms that it gave out.
#ifndef FLASHBOB_SERVER_STORE_TENSOR_STORE_H_
#define FLASHBOB_SERVER_STORE_TENSOR_STORE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/mutex.h"
#include "kernels/problem.h"
#include "server/auth/tenant.h"
#include "server/base/clock.h"
#include "server/memory/host_memory_pool.h"

namespace flashbob::server {

class TensorStore;

// The right to store so many bytes. Move-only; gives up what is left of it on destruction.
class StoreRoom {
 public:
  StoreRoom() = default;
  StoreRoom(StoreRoom&& other) noexcept
      : store_(std::exchange(other.store_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  StoreRoom& operator=(StoreRoom&& other) noexcept;
  ~StoreRoom();

 private:
  friend class TensorStore;
  StoreRoom(TensorStore* store, int64_t bytes) : store_(store), bytes_(bytes) {}
  TensorStore* store_ = nullptr;
  int64_t bytes_ = 0;
};

struct StoredTensor {
  TensorInfo info;
  std::shared_ptr<const HostBuffer> bytes;
};

class TensorStore {
 public:
  struct Options {
    std::string server = "flashbob";  // names this server in its handles
    int64_t max_bytes = 0;            // of host memory, over all tenants
    Duration default_lease = std::chrono::minutes(10);
    Duration max_lease = std::chrono::hours(24);
  };
  // What Put stores. `request_id` and the tensor's name say which try of which request this is.
  struct Item {
    std::string request_id;
    TensorInfo info;
    HostBuffer bytes;
    TenantHold hold;      // of the tenant's quota, for as long as the tensor lives
    Duration lease = {};  // 0: the default; cut to the longest that is allowed
  };
  struct Use {
    int64_t tensors = 0;
    int64_t bytes = 0;  // with what is promised
    int64_t max_bytes = 0;
  };

  TensorStore(const Clock& clock, Options options);

  const Options& options() const { return options_; }

  // RESOURCE_EXHAUSTED, QUEUE_FULL, where live leases hold too much; FAILED_PRECONDITION, TOO_LARGE, where it never
  // fits.
  absl::StatusOr<StoreRoom> Reserve(int64_t bytes);

  // Its handle. Where this tenant stored that tensor of that request before, and the handle lives, that one: the new
  // bytes are dropped.
  std::string Put(const Tenant& tenant, StoreRoom& room, Item item);

  // A live tensor of the tenant's; renews its lease. NOT_FOUND, HANDLE, for everything else.
  absl::StatusOr<StoredTensor> Get(const Tenant& tenant, const std::string& handle);

  // How many of the handles were alive and the tenant's.
  int64_t Delete(const Tenant& tenant, const std::vector<std::string>& handles);

  // Frees the tensors whose lease is over.
  void DropExpired();

  Use GetUse() const;

 private:
  friend class StoreRoom;
  struct Entry {
    const Tenant* tenant;
    std::string once;  // key in by_request_
    StoredTensor tensor;
    TenantHold hold;
    int64_t bytes;
    Duration lease;
    TimePoint expires;
  };
  using Entries = std::unordered_map<std::string, Entry>;

  void GiveUp(int64_t bytes) FLASHBOB_EXCLUDES(mutex_);
  // Moves those out whose lease is over; the caller destroys them once unlocked.
  std::vector<Entry> TakeExpiredLocked(TimePoint now) FLASHBOB_REQUIRES(mutex_);
  Entry TakeLocked(Entries::iterator entry) FLASHBOB_REQUIRES(mutex_);
  std::string NewHandleLocked() FLASHBOB_REQUIRES(mutex_);

  const Clock& clock_;
  const Options options_;
  mutable Mutex mutex_;
  Entries entries_ FLASHBOB_GUARDED_BY(mutex_);                                          // by handle
  std::unordered_map<std::string, std::string> by_request_ FLASHBOB_GUARDED_BY(mutex_);  // handle
  int64_t bytes_ FLASHBOB_GUARDED_BY(mutex_) = 0;                                        // of entries and rooms
  // Drawn for handles to come: to draw for one takes as long, and system calls.
  std::string random_ FLASHBOB_GUARDED_BY(mutex_);
};

}  // namespace flashbob::server

#endif  // FLASHBOB_SERVER_STORE_TENSOR_STORE_H_
