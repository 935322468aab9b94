// TenantRegistry: who a bearer token belongs to.
//
// It keeps hashes of tokens only. A token that comes is hashed and compared with every one of them in constant time, so
// that the time of the answer tells nothing about the tokens that there are.
#ifndef FLASHBOB_SERVER_AUTH_TENANT_REGISTRY_H_
#define FLASHBOB_SERVER_AUTH_TENANT_REGISTRY_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/auth/tenant.h"

namespace flashbob::server {

// Thread safety: const throughout; share freely.
class TenantRegistry {
 public:
  using Sha256 = std::array<uint8_t, 32>;

  // One tenant, `default`, that everybody is.
  TenantRegistry();

  // From config/tenants.proto in text format; errors name `name`, and the line or the tenant.
  static absl::StatusOr<TenantRegistry> FromText(const std::string& name, const std::string& text);
  static absl::StatusOr<TenantRegistry> FromFile(const std::string& path);

  // The tenant that a call's `authorization` header ("Bearer TOKEN") names; nothing where it has none.
  // UNAUTHENTICATED where it is lacking or unknown.
  absl::StatusOr<std::shared_ptr<Tenant>> Authenticate(std::optional<std::string_view> authorization) const;

  // In the order of the file.
  const std::vector<std::shared_ptr<Tenant>>& tenants() const { return tenants_; }
  bool needs_token() const { return !tokens_.empty(); }

 private:
  struct Token {
    Sha256 hash;
    std::shared_ptr<Tenant> tenant;
  };

  std::vector<std::shared_ptr<Tenant>> tenants_;
  std::vector<Token> tokens_;
};

}  // namespace flashbob::server

#endif  // FLASHBOB_SERVER_AUTH_TENANT_REGISTRY_H_
