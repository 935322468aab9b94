#include "server/auth/authenticator.h"

#include <utility>

#include "kernels/base/status_macros.h"
#include "server/config/text_format.h"

namespace flashbob::server {

absl::StatusOr<std::unique_ptr<Authenticator>> Authenticator::Create(const std::string& tenants_file) {
  if (tenants_file.empty()) {
    return std::unique_ptr<Authenticator>(new Authenticator("", "", TenantRegistry()));
  }
  FLASHBOB_ASSIGN_OR_RETURN(std::string text, ReadTextFile(tenants_file));
  FLASHBOB_ASSIGN_OR_RETURN(TenantRegistry registry, TenantRegistry::FromText(tenants_file, text));
  return std::unique_ptr<Authenticator>(new Authenticator(tenants_file, std::move(text), std::move(registry)));
}

Authenticator::Authenticator(std::string path, std::string text, TenantRegistry registry)
    : path_(std::move(path)),
      text_(std::move(text)),
      registry_(std::make_shared<const TenantRegistry>(std::move(registry))) {}

absl::StatusOr<std::shared_ptr<Tenant>> Authenticator::Authenticate(const Credentials& credentials) const {
  return registry()->Authenticate(credentials);
}

absl::StatusOr<bool> Authenticator::Reload() {
  if (path_.empty()) return false;
  const absl::StatusOr<std::string> read = ReadTextFile(path_);
  const std::string text = read.ok() ? *read : read.status().ToString();
  MutexLock lock(mutex_);
  if (text == text_) return false;
  text_ = text;
  if (!read.ok()) return read.status();
  FLASHBOB_ASSIGN_OR_RETURN(TenantRegistry registry, TenantRegistry::FromText(path_, text, registry_.get()));
  registry_ = std::make_shared<const TenantRegistry>(std::move(registry));
  return true;
}

std::vector<std::shared_ptr<Tenant>> Authenticator::tenants() const { return registry()->tenants(); }

std::shared_ptr<const TenantRegistry> Authenticator::registry() const {
  MutexLock lock(mutex_);
  return registry_;
}

}  // namespace flashbob::server
