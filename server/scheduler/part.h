// Part: the share of a request that one device computes. A request has one, which is all of it, but for those that are
// split.
//
// It belongs to its request. Only the scheduler moves it: what changes is guarded by the scheduler's mutex, and while
// `busy` the work itself (device memory, tensors) is one thread's alone.
#ifndef FLASHBOB_SERVER_SCHEDULER_PART_H_
#define FLASHBOB_SERVER_SCHEDULER_PART_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "kernels/engine.h"
#include "server/memory/device_memory_pool.h"
#include "server/scheduler/device_tensors.h"
#include "server/scheduler/request.h"
#include "server/scheduler/shard.h"

namespace flashbob::server {

struct Part {
  // All of a request.
  explicit Part(Request& request)
      : request(request), plan(request.plan()), shard(Shard::WholeOf(plan.computation().problem())) {}
  // A shard of it, with a plan of its own.
  Part(Request& request, const Shard& shard, std::unique_ptr<const Plan> shard_plan)
      : request(request), shard_plan(std::move(shard_plan)), plan(*this->shard_plan), shard(shard) {}

  Request& request;
  const std::unique_ptr<const Plan> shard_plan;  // null where it is all of the request
  const Plan& plan;
  const Shard shard;

  uint64_t ticket = 0;         // its name in the fair queue
  int device = -1;             // that holds memory for it
  bool busy = false;           // a thread copies for it or runs its slice: what follows is that thread's alone
  bool queued = false;         // in the fair queue
  bool copies_inline = false;  // by the thread that runs its slices, in and out
  bool computed = false;       // its outputs lie in host memory
  int next_slice = 0;
  double done_flops = 0;

  DeviceReservation device_memory;
  std::unique_ptr<DeviceTensors> device_tensors;
};

}  // namespace flashbob::server

#endif  // FLASHBOB_SERVER_SCHEDULER_PART_H_
