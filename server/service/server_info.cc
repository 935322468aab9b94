#include "server/service/server_info.h"

#include <map>
#include <utility>
#include <vector>

#include "server/service/spec.h"

namespace flashbob::server {
namespace {

constexpr Layout kAllLayouts[] = {Layout::kBHND, Layout::kBNHD, Layout::kTHD};

// Whether the engine plans a problem of one query and one key of the largest dims.
bool Serves(const Engine& engine, Operation operation, DType dtype, Layout layout) {
  constexpr int64_t kDim = AttentionProblem::kMaxHeadDim;
  ProblemOptions options;
  options.layout = layout;
  const Shape shape = layout == Layout::kTHD ? Shape{1, 1, kDim} : Shape{1, 1, 1, kDim};
  if (layout == Layout::kTHD) options.cu_seqlens_q = options.cu_seqlens_k = {0, 1};
  std::vector<TensorInfo> inputs;
  Computation::RequiredInputs(operation).ForEach([&](TensorName name) { inputs.push_back({name, dtype, shape}); });
  const absl::StatusOr<Computation> computation = Computation::Create(operation, options, inputs, {});
  return computation.ok() && engine.MakePlan(*computation).ok();
}

// The operations that a device serves for a dtype in a layout.
std::vector<Operation> ServedOperations(const Engine& engine, DType dtype, Layout layout) {
  std::vector<Operation> operations;
  for (Operation operation : kAllOperations) {
    if (Serves(engine, operation, dtype, layout)) operations.push_back(operation);
  }
  return operations;
}

// What a device computes, in few capabilities: layouts that serve the same operations share one, and so do dtypes for
// which that comes to the same.
void AddCapabilities(const Engine& engine, v1::GetServerInfoResponse& info) {
  using LayoutsOf = std::map<std::vector<Operation>, std::vector<Layout>>;
  std::map<LayoutsOf, std::vector<DType>> dtypes_of;
  for (DType dtype : kAllDTypes) {
    LayoutsOf layouts_of;
    for (Layout layout : kAllLayouts) layouts_of[ServedOperations(engine, dtype, layout)].push_back(layout);
    layouts_of.erase(std::vector<Operation>());
    dtypes_of[layouts_of].push_back(dtype);
  }
  for (const auto& [layouts_of, dtypes] : dtypes_of) {
    for (const auto& [operations, layouts] : layouts_of) {
      v1::Capability& capability = *info.add_capabilities();
      for (Operation operation : operations) capability.add_operations(ToProto(operation));
      for (DType dtype : dtypes) capability.add_dtypes(ToProto(dtype));
      for (Layout layout : layouts) capability.add_layouts(ToProto(layout));
      capability.set_max_head_dim(AttentionProblem::kMaxHeadDim);
      capability.set_max_value_dim(AttentionProblem::kMaxHeadDim);
      capability.set_device(engine.device().name);
    }
  }
}

v1::PoolInfo ToProto(const PoolUse& use) {
  v1::PoolInfo info;
  info.set_limit_bytes(use.limit_bytes);
  info.set_reserved_bytes(use.reserved_bytes);
  info.set_used_bytes(use.used_bytes);
  info.set_high_water_bytes(use.high_water_bytes);
  info.set_largest_free_bytes(use.largest_free_bytes);
  return info;
}

}  // namespace

ServerInfo::ServerInfo(std::string version, const Scheduler& scheduler, const HostMemoryPool& pool, v1::Limits limits)
    : scheduler_(scheduler), pool_(pool) {
  fixed_.set_version(std::move(version));
  *fixed_.mutable_limits() = std::move(limits);
  for (const DeviceUse& use : scheduler.Devices()) {
    const DeviceInfo& info = use.engine->device();
    v1::Device& device = *fixed_.add_devices();
    device.set_name(info.name);
    device.set_model(info.model);
    device.set_compute_units(info.compute_units);
    AddCapabilities(*use.engine, fixed_);
  }
}

v1::GetServerInfoResponse ServerInfo::Now(const Tenant& tenant) const {
  v1::GetServerInfoResponse info = fixed_;
  const PoolUse host = pool_.Use();
  *info.mutable_host_memory() = ToProto(host);
  int index = 0;
  for (const DeviceUse& use : scheduler_.Devices()) {
    v1::PoolInfo& memory = *info.mutable_devices(index++)->mutable_memory();
    if (use.engine->unified_memory()) {
      memory = info.host_memory();
      continue;
    }
    memory.set_limit_bytes(use.memory.limit_bytes);
    memory.set_reserved_bytes(use.memory.reserved_bytes);
    memory.set_used_bytes(use.memory.reserved_bytes);
    memory.set_high_water_bytes(use.memory.high_water_bytes);
    memory.set_largest_free_bytes(use.memory.largest_free_bytes);
  }
  const Tenant::Use held = tenant.GetUse();
  info.mutable_tenant()->set_name(tenant.name());
  info.mutable_tenant()->set_max_bytes(tenant.settings().max_bytes);
  info.mutable_tenant()->set_used_bytes(held.bytes);
  info.mutable_tenant()->set_max_in_flight(tenant.settings().max_in_flight);
  info.mutable_tenant()->set_in_flight(held.in_flight);
  return info;
}

}  // namespace flashbob::server
