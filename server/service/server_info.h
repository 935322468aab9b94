// ServerInfo: what GetServerInfo answers.
#ifndef FLASHBOB_SERVER_SERVICE_SERVER_INFO_H_
#define FLASHBOB_SERVER_SERVICE_SERVER_INFO_H_

#include <string>

#include "flashbob/v1/attention_service.pb.h"
#include "server/auth/tenant.h"
#include "server/memory/host_memory_pool.h"
#include "server/scheduler/scheduler.h"

namespace flashbob::server {

// Thread safety: const throughout; the scheduler and the pool must outlive it.
class ServerInfo {
 public:
  // Asks every device of `scheduler` what it computes, by planning small problems.
  ServerInfo(std::string version, const Scheduler& scheduler, const HostMemoryPool& pool, v1::Limits limits);

  // As it is now.
  v1::GetServerInfoResponse Now(const Tenant& tenant) const;

 private:
  v1::GetServerInfoResponse fixed_;
  const Scheduler& scheduler_;
  const HostMemoryPool& pool_;
};

}  // namespace flashbob::server

#endif  // FLASHBOB_SERVER_SERVICE_SERVER_INFO_H_
