// Fuzzes what an operator writes: the tenants file, the configuration file, sizes and addresses. The first byte says
// which.
//
// Promises: an error names the file. Of tenants that are taken, every name, weight, token and certificate holds to its
// rule, each token opens exactly its tenant, and a file with an error in it changes nothing of the tenants before.
// Settings that are taken are all within their ranges, however they were written.
#include <openssl/sha.h>

#include <cctype>
#include <set>
#include <string>
#include <string_view>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/auth/tenant_registry.h"
#include "server/auth/tenants.pb.h"
#include "server/base/errors.h"
#include "server/config/config_file.h"
#include "server/config/server_options.h"
#include "server/config/text_format.h"
#include "tests/fuzz/check.h"

namespace flashbob::fuzz {
namespace {

using server::ServerOptions;
using server::Tenant;
using server::TenantRegistry;

constexpr char kFile[] = "the-file";

// A token that the fuzzer's tenants may have by its hash, here and in the seeds.
constexpr char kToken[] = "alpha";
constexpr char kBefore[] = R"(tenants { name: "a" certificate_name: "a" weight: 7 max_bytes: 100 })";

void CheckTenant(const Tenant::Settings& tenant) {
  bool name = !tenant.name.empty() && tenant.name.size() <= 63;
  for (const char c : tenant.name)
    name = name && (std::isalnum(static_cast<unsigned char>(c)) || std::strchr("-_.", c));
  Check(name, "a tenant's name holds to its rule", tenant.name);
  Check(tenant.weight >= 0.01 && tenant.weight <= 1000, "a weight is within its range");
  Check(tenant.max_bytes >= 0 && tenant.max_in_flight >= 0, "a quota is not negative");
  Check(tenant.priority >= -100 && tenant.priority <= 100, "a priority is within its range");
}

void CheckNames(const server::config::Tenants& file, const TenantRegistry& registry) {
  for (int i = 0; i < file.tenants_size(); ++i) {
    for (const std::string& certificate : file.tenants(i).certificate_name()) {
      const auto owner = registry.Authenticate({std::nullopt, {certificate}});
      Check(owner.ok() && *owner == registry.tenants()[static_cast<size_t>(i)], "a certificate opens its tenant alone");
    }
  }
}

void CheckToken(const server::config::Tenants& file, const TenantRegistry& registry) {
  unsigned char hash[32];
  SHA256(reinterpret_cast<const unsigned char*>(kToken), sizeof(kToken) - 1, hash);
  const std::string bytes(reinterpret_cast<const char*>(hash), sizeof(hash));
  std::string owner;
  for (const auto& tenant : file.tenants()) {
    for (const std::string& digits : tenant.token_sha256()) {
      if (absl::HexStringToBytes(digits) == bytes) owner = tenant.name();
    }
  }
  const auto found = registry.Authenticate({absl::StrCat("Bearer ", kToken), {}});
  Check(found.ok() ? (*found)->name() == owner : owner.empty(), "a token opens exactly its tenant");
  if (!found.ok()) Check(server::ReasonOf(found.status()) == "CREDENTIALS", "an unknown token is refused as such");
  Check(!registry.Authenticate({std::nullopt, {}}).ok(), "nobody comes in without credentials");
}

void TestTenants(const std::string& text) {
  const absl::StatusOr<TenantRegistry> before = TenantRegistry::FromText("before", kBefore);
  const std::shared_ptr<Tenant> kept = before->tenants().front();
  const absl::StatusOr<TenantRegistry> registry = TenantRegistry::FromText(kFile, text, &*before);
  if (!registry.ok()) {
    Check(absl::IsInvalidArgument(registry.status()) && registry.status().message().find(kFile) == 0,
          "an error names the file", registry.status().ToString());
    Check(kept->settings().weight == 7 && kept->settings().max_bytes == 100, "a file with an error changes nothing");
    return;
  }
  server::config::Tenants file;
  Check(server::ParseTextFormat(kFile, text, file).ok(), "what is taken can be read");
  Check(!registry->tenants().empty() && static_cast<int>(registry->tenants().size()) == file.tenants_size(),
        "every tenant of the file is taken");
  std::set<std::string> names;
  for (const auto& tenant : registry->tenants()) {
    CheckTenant(tenant->settings());
    Check(names.insert(tenant->name()).second, "no two tenants have one name", tenant->name());
    Check((tenant->name() == "a") == (tenant == kept), "a tenant that stays is the same object");
    const auto hold = tenant->Hold(10, 1);
    Check(tenant->GetUse().bytes == (hold.ok() ? 10 : 0), "what is held is counted");
  }
  for (const auto& tenant : registry->tenants()) Check(tenant->GetUse().bytes == 0, "what is given back is free");
  CheckNames(file, *registry);
  CheckToken(file, *registry);
}

void CheckOptions(const ServerOptions& options) {
  for (const std::string& listen : {options.listen, options.metrics_listen}) {
    Check(listen.empty() || server::ParseHostPort(listen).ok(), "an address that is taken can be listened on", listen);
  }
  Check(!options.listen.empty() || !options.listen_unix.empty(), "somebody can connect");
  Check(options.tls.certificate.empty() == options.tls.key.empty(), "a certificate has a key");
  Check(options.listen.empty() || !options.tls.certificate.empty() || options.allow_insecure ||
            server::IsLoopback(server::ParseHostPort(options.listen)->host),
        "clear text for other machines is allowed by name alone", options.listen);
  Check(options.host_memory_bytes >= 1 << 20 && options.store_memory_bytes >= 1 &&
            options.store_memory_bytes <= options.host_memory_bytes && options.device_memory_bytes >= 0,
        "memory is within its range");
  Check(options.threads >= 0 && options.threads <= 4096, "threads are within their range");
  Check(options.max_queued_requests >= 1 && options.max_queued_requests <= 10000, "the queue is bounded");
  Check(options.max_chunk_bytes >= 1 << 20 && options.max_chunk_bytes <= 1 << 30, "chunks are bounded");
  Check(server::MaxMessageBytes(options) > options.max_chunk_bytes &&
            server::MaxMessageBytes(options) <= std::numeric_limits<int>::max(),
        "the largest chunk fits into a message, and gRPC can count it");
  Check(server::WireMemoryBytes(options) >= 16 * server::MaxMessageBytes(options), "some messages fit at once");
  for (const double seconds : {options.grace_seconds, options.idle_upload_seconds, options.max_lease_seconds}) {
    Check(seconds >= 0 && seconds <= 1e9, "times are times");
  }
  Check(!options.server_name.empty() && IsPrintable(options.server_name), "the server's name fits into handles");
}

void TestSettings(const std::string& text) {
  ServerOptions defaults;
  defaults.host_memory_bytes = 1 << 30;  // the machine's need not be looked up each time
  const absl::StatusOr<ServerOptions> options = server::ApplyConfigText(kFile, text, defaults);
  if (!options.ok()) {
    Check(absl::IsInvalidArgument(options.status()) && !options.status().message().empty(),
          "an error says what is wrong");
    return;
  }
  const absl::StatusOr<ServerOptions> resolved = server::Resolve(*options);
  if (!resolved.ok()) {
    Check(absl::IsInvalidArgument(resolved.status()) && resolved.status().message().size() > 10,
          "an error names the setting", resolved.status().ToString());
    return;
  }
  CheckOptions(*resolved);
  Check(server::Resolve(*resolved).ok(), "what was resolved can be resolved again");
}

void TestValues(const std::string& text) {
  const absl::StatusOr<int64_t> bytes = server::ParseBytes(text);
  Check(!bytes.ok() || *bytes >= 0, "sizes are not negative", text);
  if (bytes.ok()) Check(server::ParseBytes(absl::StrCat(*bytes)) == bytes, "a size in bytes is the same size", text);
  const absl::StatusOr<server::HostPort> address = server::ParseHostPort(text);
  if (!address.ok()) return;
  Check(!address->host.empty() && address->port >= 0 && address->port <= 65535, "a port is a port", text);
  const auto again = server::ParseHostPort(absl::StrCat(address->host, ":", address->port));
  Check(again.ok() && again->host == address->host && again->port == address->port, "an address stays itself", text);
  server::IsLoopback(address->host);
}

}  // namespace
}  // namespace flashbob::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 4) {
    case 0:
    case 1:
      flashbob::fuzz::TestTenants(text);
      break;
    case 2:
      flashbob::fuzz::TestSettings(text);
      break;
    default:
      flashbob::fuzz::TestValues(text);
  }
  return 0;
}
