// flashbob info: devices, limits, what is served, quota.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/command.h"
#include "client/cli/exit_code.h"

namespace flashbob::cli {
namespace {

constexpr char kDescription[] = "Show devices, limits, what is served, and this caller's quota and use";

constexpr char kExamples[] = R"(Examples:
  flashbob info
  flashbob info --server gpu-node:50051 --json
  flashbob info --embedded)";

const char* LayoutName(client::Layout layout) {
  switch (layout) {
    case client::Layout::kBHND:
      return "BHND";
    case client::Layout::kBNHD:
      return "BNHD";
    case client::Layout::kTHD:
      return "THD";
  }
  return "unknown";
}

template <typename T, typename NameOf>
std::vector<std::string> Names(const std::vector<T>& values, NameOf name_of) {
  std::vector<std::string> names;
  for (const T& value : values) names.emplace_back(name_of(value));
  return names;
}

std::string Gibibytes(int64_t bytes) { return absl::StrFormat("%.2f GiB", static_cast<double>(bytes) / (1 << 30)); }

std::string OrUnbounded(int64_t limit) { return limit == 0 ? "no bound" : absl::StrCat(limit); }

Json ToJson(const client::PoolInfo& pool) {
  return {{"limit_bytes", pool.limit_bytes},
          {"reserved_bytes", pool.reserved_bytes},
          {"used_bytes", pool.used_bytes},
          {"high_water_bytes", pool.high_water_bytes},
          {"largest_free_bytes", pool.largest_free_bytes}};
}

Json ToJson(const client::ServerInfo& info) {
  Json devices = Json::array();
  for (const client::Device& device : info.devices) {
    devices.push_back({{"name", device.name},
                       {"model", device.model},
                       {"compute_units", device.compute_units},
                       {"memory", ToJson(device.memory)}});
  }
  Json capabilities = Json::array();
  for (const client::Capability& capability : info.capabilities) {
    capabilities.push_back({{"device", capability.device},
                            {"operations", Names(capability.operations, [](auto x) { return client::Name(x); })},
                            {"dtypes", Names(capability.dtypes, [](auto x) { return client::Name(x); })},
                            {"layouts", Names(capability.layouts, LayoutName)},
                            {"max_head_dim", capability.max_head_dim},
                            {"max_value_dim", capability.max_value_dim}});
  }
  const client::Limits& limits = info.limits;
  return {{"version", info.version},
          {"devices", devices},
          {"capabilities", capabilities},
          {"limits",
           {{"max_chunk_bytes", limits.max_chunk_bytes},
            {"max_message_bytes", limits.max_message_bytes},
            {"max_request_bytes", limits.max_request_bytes},
            {"max_queued_requests", limits.max_queued_requests},
            {"max_metadata_bytes", limits.max_metadata_bytes},
            {"idle_upload_seconds", limits.idle_upload_seconds},
            {"max_lease_seconds", limits.max_lease_seconds},
            {"max_sequences", limits.max_sequences}}},
          {"tenant",
           {{"name", info.tenant.name},
            {"max_bytes", info.tenant.max_bytes},
            {"used_bytes", info.tenant.used_bytes},
            {"max_in_flight", info.tenant.max_in_flight},
            {"in_flight", info.tenant.in_flight}}},
          {"host_memory", ToJson(info.host_memory)}};
}

std::string ToText(const client::ServerInfo& info, bool embedded) {
  std::string text = absl::StrCat("FlashBoB ", info.version, embedded ? ", in this process" : "", "\n");
  for (const client::Device& device : info.devices) {
    absl::StrAppend(&text, "device ", device.name, ": ", device.model, ", ", device.compute_units,
                    " compute units, memory ", Gibibytes(device.memory.limit_bytes), " of which ",
                    Gibibytes(device.memory.reserved_bytes), " reserved\n");
  }
  for (const client::Capability& capability : info.capabilities) {
    absl::StrAppend(&text, "serves on ", capability.device, ": ",
                    absl::StrJoin(Names(capability.operations, [](auto x) { return client::Name(x); }), " "), "; ",
                    absl::StrJoin(Names(capability.dtypes, [](auto x) { return client::Name(x); }), " "), "; ",
                    absl::StrJoin(Names(capability.layouts, LayoutName), " "), "; head dim to ",
                    capability.max_head_dim, ", value dim to ", capability.max_value_dim, "\n");
  }
  if (embedded) return text;
  const client::Limits& limits = info.limits;
  absl::StrAppend(&text, "limits: request ", limits.max_request_bytes, " bytes, chunk ", limits.max_chunk_bytes,
                  ", message ", limits.max_message_bytes, ", metadata ", limits.max_metadata_bytes, ", ",
                  limits.max_queued_requests, " queued requests, ", limits.max_sequences,
                  " packed sequences, stalled uploads cut after ", limits.idle_upload_seconds, " s, leases to ",
                  limits.max_lease_seconds, " s\n");
  absl::StrAppend(&text, "host memory: ", Gibibytes(info.host_memory.limit_bytes), " of which ",
                  Gibibytes(info.host_memory.reserved_bytes), " reserved\n");
  absl::StrAppend(&text, "tenant ", info.tenant.name, ": ", info.tenant.used_bytes, " bytes held (",
                  OrUnbounded(info.tenant.max_bytes), "), ", info.tenant.in_flight, " requests in flight (",
                  OrUnbounded(info.tenant.max_in_flight), ")\n");
  return text;
}

class InfoCommand : public Command {
 public:
  explicit InfoCommand(CLI::App& program) : Command(program, "info", kDescription, kExamples) {}

  int Run(Console& console) override {
    const absl::StatusOr<std::unique_ptr<Backend>> backend = OpenBackend(backend_flags());
    if (!backend.ok()) return console.Fail(OpenExitCodeOf(backend.status()), backend.status());
    const absl::StatusOr<client::ServerInfo> info = (*backend)->Info();
    if (!info.ok()) return console.Fail(ExitCodeOf(info.status()), info.status());
    console.Print(ToJson(*info), ToText(*info, backend_flags().embedded));
    return kSuccess;
  }
};

}  // namespace

std::unique_ptr<Command> MakeInfoCommand(CLI::App& program) { return std::make_unique<InfoCommand>(program); }

}  // namespace flashbob::cli
