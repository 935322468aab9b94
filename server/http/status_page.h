// The page /statusz: what a server does now and what its requests wait for, for people, also on a phone.
#ifndef FLASHBOB_SERVER_HTTP_STATUS_PAGE_H_
#define FLASHBOB_SERVER_HTTP_STATUS_PAGE_H_

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "server/auth/tenant.h"
#include "server/memory/device_memory_pool.h"
#include "server/memory/host_memory_pool.h"
#include "server/scheduler/request.h"
#include "server/service/call_registry.h"
#include "server/store/tensor_store.h"

namespace flashbob::server {

// What the page shows. Texts may hold what clients sent.
struct StatusSnapshot {
  struct Device {
    std::string name;
    std::string model;
    bool unified_memory = false;
    DeviceMemoryPool::Use memory;
  };
  struct TenantUse {
    Tenant::Settings settings;
    Tenant::Use use;
  };
  std::string server_name;
  std::string version;
  std::string not_ready;  // why; empty where it is ready
  std::chrono::system_clock::time_point now;
  Duration uptime = {};
  std::vector<Device> devices;
  PoolUse host_memory;
  TensorStore::Use store;
  std::array<int64_t, kNumRequestStates> requests = {};
  int64_t queue_limit = 0;
  Duration estimated_wait = {};
  std::vector<TenantUse> tenants;
  int64_t calls_in_flight = 0;
  std::vector<CallView> calls;  // some of them, the oldest first
  std::vector<EndedCall> ended;
};

// One HTML document without scripts. Every text is escaped.
std::string RenderStatusPage(const StatusSnapshot& snapshot);

// For HTML's text and quoted attributes.
std::string EscapeHtml(std::string_view text);

}  // namespace flashbob::server

#endif  // FLASHBOB_SERVER_HTTP_STATUS_PAGE_H_
