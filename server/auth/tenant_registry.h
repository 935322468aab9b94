// TenantRegistry: who a bearer token or a client certificate belongs to.
//
// It keeps hashes of tokens only. A token that comes is hashed and compared with every one of them in constant time, so
// that the time of the answer tells nothing about the tokens that there are.
#ifndef FLASHBOB_SERVER_AUTH_TENANT_REGISTRY_H_
#define FLASHBOB_SERVER_AUTH_TENANT_REGISTRY_H_

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/auth/tenant.h"

namespace flashbob::server {

// What a call brings to say whose it is.
struct Credentials {
  std::optional<std::string_view> authorization;  // its header: "Bearer TOKEN"
  // The names in the certificate that the client proved to own: its alternative names or, where it has none, its common
  // name. Empty where it showed no certificate.
  std::vector<std::string> certificate_names;
};

// Thread safety: const throughout; share freely.
class TenantRegistry {
 public:
  using Sha256 = std::array<uint8_t, 32>;

  // One tenant, `default`, that everybody is.
  TenantRegistry();

  // From auth/tenants.proto in text format; errors name `name`, and the line or the tenant. Tenants that `previous`
  // has stay the same objects, with what they hold, and take their new settings.
  static absl::StatusOr<TenantRegistry> FromText(const std::string& name, const std::string& text,
                                                 const TenantRegistry* previous = nullptr);

  // The tenant that the token or the certificate names. UNAUTHENTICATED where both are lacking, a token is given that
  // is not known, or they name two tenants.
  absl::StatusOr<std::shared_ptr<Tenant>> Authenticate(const Credentials& credentials) const;

  // In the order of the file.
  const std::vector<std::shared_ptr<Tenant>>& tenants() const { return tenants_; }

 private:
  struct Token {
    Sha256 hash;
    std::shared_ptr<Tenant> tenant;
  };

  std::shared_ptr<Tenant> Find(const std::string& name) const;
  // Gives `tenant` what names it; INVALID_ARGUMENT where another has it already.
  absl::Status AddNames(const std::vector<Sha256>& tokens, const std::vector<std::string>& certificates,
                        const std::shared_ptr<Tenant>& tenant);
  absl::StatusOr<std::shared_ptr<Tenant>> OwnerOfToken(std::string_view authorization) const;
  absl::StatusOr<std::shared_ptr<Tenant>> OwnerOfCertificate(const std::vector<std::string>& names) const;

  bool open_ = true;  // everybody is the one tenant
  std::vector<std::shared_ptr<Tenant>> tenants_;
  std::vector<Token> tokens_;
  std::map<std::string, std::shared_ptr<Tenant>> certificates_;  // by name
};

}  // namespace flashbob::server

#endif  // FLASHBOB_SERVER_AUTH_TENANT_REGISTRY_H_
