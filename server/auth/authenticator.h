// Authenticator: says whose a call is, by the tenants file as it is now.
//
// Reload takes a changed file over: tokens and certificates that are gone are refused from then on, tenants that stay
// keep what they hold. A file with an error in it changes nothing.
#ifndef FLASHBOB_SERVER_AUTH_AUTHENTICATOR_H_
#define FLASHBOB_SERVER_AUTH_AUTHENTICATOR_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/mutex.h"
#include "server/auth/tenant_registry.h"

namespace flashbob::server {

// Thread safety: any thread.
class Authenticator {
 public:
  // An empty path: everybody is the tenant `default`.
  static absl::StatusOr<std::unique_ptr<Authenticator>> Create(const std::string& tenants_file);

  absl::StatusOr<std::shared_ptr<Tenant>> Authenticate(const Credentials& credentials) const;

  // Looks at the file again: true where it had changed and is taken over. An error is given once a change.
  absl::StatusOr<bool> Reload();

  std::vector<std::shared_ptr<Tenant>> tenants() const;

 private:
  Authenticator(std::string path, std::string text, TenantRegistry registry);
  std::shared_ptr<const TenantRegistry> registry() const;

  const std::string path_;
  mutable Mutex mutex_;
  std::string text_ FLASHBOB_GUARDED_BY(mutex_);  // the last one seen; of a file that could not be read, the error
  std::shared_ptr<const TenantRegistry> registry_ FLASHBOB_GUARDED_BY(mutex_);
};

}  // namespace flashbob::server

#endif  // FLASHBOB_SERVER_AUTH_AUTHENTICATOR_H_
