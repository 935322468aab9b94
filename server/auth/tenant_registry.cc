#include "server/auth/tenant_registry.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <cctype>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/auth/tenants.pb.h"
#include "server/base/errors.h"
#include "server/config/text_format.h"

namespace flashbob::server {
namespace {

constexpr std::string_view kBearer = "Bearer ";

TenantRegistry::Sha256 HashOf(std::string_view token) {
  TenantRegistry::Sha256 hash;
  SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(), hash.data());
  return hash;
}

bool IsName(const std::string& name) {
  return !name.empty() && name.size() <= 63 && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
  });
}

absl::StatusOr<TenantRegistry::Sha256> ParseHash(const std::string& text) {
  const bool hex =
      text.size() == 64 && std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isxdigit(c) != 0; });
  if (!hex) {
    return absl::InvalidArgumentError(absl::StrCat("a token_sha256 of ", text.size(),
                                                   " characters; it must be 64 hexadecimal digits, as sha256sum "
                                                   "prints them"));
  }
  const std::string bytes = absl::HexStringToBytes(text);
  TenantRegistry::Sha256 hash;
  std::copy(bytes.begin(), bytes.end(), hash.begin());
  return hash;
}

absl::Status Check(const config::TenantConfig& tenant) {
  if (!IsName(tenant.name())) {
    return absl::InvalidArgumentError("its name must be 1 to 63 letters, digits, '-', '_' or '.'");
  }
  const double weight = tenant.has_weight() ? tenant.weight() : 1;
  if (!(weight >= 0.01 && weight <= 1000)) {
    return absl::InvalidArgumentError(absl::StrCat("weight is ", weight, "; it must be 0.01 to 1000"));
  }
  if (tenant.max_bytes() < 0 || tenant.max_in_flight() < 0) {
    return absl::InvalidArgumentError(absl::StrCat("max_bytes is ", tenant.max_bytes(), " and max_in_flight ",
                                                   tenant.max_in_flight(), "; neither may be below 0"));
  }
  if (tenant.priority() < -100 || tenant.priority() > 100) {
    return absl::InvalidArgumentError(absl::StrCat("priority is ", tenant.priority(), "; it must be -100 to 100"));
  }
  if (tenant.token_sha256().empty() && tenant.certificate_name().empty()) {
    return absl::InvalidArgumentError("it has no token_sha256 and no certificate_name");
  }
  for (const std::string& certificate : tenant.certificate_name()) {
    if (certificate.empty()) return absl::InvalidArgumentError("it has an empty certificate_name");
  }
  return absl::OkStatus();
}

Tenant::Settings SettingsOf(const config::TenantConfig& config) {
  Tenant::Settings settings;
  settings.name = config.name();
  settings.weight = config.has_weight() ? config.weight() : 1;
  settings.priority = config.priority();
  settings.max_bytes = config.max_bytes();
  settings.max_in_flight = config.max_in_flight();
  return settings;
}

}  // namespace

TenantRegistry::TenantRegistry() { tenants_.push_back(Tenant::Create({})); }

absl::StatusOr<TenantRegistry> TenantRegistry::FromText(const std::string& name, const std::string& text,
                                                        const TenantRegistry* previous) {
  config::Tenants parsed;
  FLASHBOB_RETURN_IF_ERROR(ParseTextFormat(name, text, parsed));
  if (parsed.tenants().empty()) return absl::InvalidArgumentError(absl::StrCat(name, ": it names no tenant"));
  TenantRegistry registry;
  registry.open_ = false;
  registry.tenants_.clear();
  for (const config::TenantConfig& config : parsed.tenants()) {
    const auto wrong = [&](const absl::Status& status) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": tenant \"", config.name(), "\": ", std::string(status.message())));
    };
    const absl::Status checked = Check(config);
    if (!checked.ok()) return wrong(checked);
    if (registry.Find(config.name()) != nullptr) return wrong(absl::AlreadyExistsError("it is named twice"));
    std::vector<Sha256> hashes;
    for (const std::string& digits : config.token_sha256()) {
      const absl::StatusOr<Sha256> hash = ParseHash(digits);
      if (!hash.ok()) return wrong(hash.status());
      hashes.push_back(*hash);
    }
    std::shared_ptr<Tenant> tenant = previous == nullptr ? nullptr : previous->Find(config.name());
    if (tenant == nullptr) tenant = Tenant::Create(SettingsOf(config));
    registry.tenants_.push_back(tenant);
    const absl::Status added =
        registry.AddNames(hashes, {config.certificate_name().begin(), config.certificate_name().end()}, tenant);
    if (!added.ok()) return wrong(added);
  }
  // Only now, that nothing is wrong: a file with an error in it changes nothing.
  for (int i = 0; i < parsed.tenants_size(); ++i) {
    registry.tenants_[static_cast<size_t>(i)]->Update(SettingsOf(parsed.tenants(i)));
  }
  return registry;
}

absl::StatusOr<std::shared_ptr<Tenant>> TenantRegistry::Authenticate(const Credentials& credentials) const {
  if (open_) return tenants_.front();
  const bool certified = !credentials.certificate_names.empty();
  if (!credentials.authorization.has_value() && !certified) {
    return Error(Reason::kCredentials,
                 certificates_.empty()
                     ? "this server needs a bearer token: metadata `authorization: Bearer TOKEN`"
                     : "this server needs a client certificate or a bearer token: metadata `authorization: Bearer "
                       "TOKEN`");
  }
  std::shared_ptr<Tenant> tenant;
  if (credentials.authorization.has_value()) {
    FLASHBOB_ASSIGN_OR_RETURN(tenant, OwnerOfToken(*credentials.authorization));
  }
  if (!certified) return tenant;
  absl::StatusOr<std::shared_ptr<Tenant>> by_certificate = OwnerOfCertificate(credentials.certificate_names);
  if (tenant == nullptr) return by_certificate;
  // A certificate that names nobody only opens the connection; the token says whose call it is.
  if (by_certificate.ok() && *by_certificate != tenant) {
    return Error(Reason::kCredentials,
                 absl::StrCat("the bearer token is tenant ", tenant->name(), "'s, the client certificate tenant ",
                              (*by_certificate)->name(), "'s"));
  }
  return tenant;
}

std::shared_ptr<Tenant> TenantRegistry::Find(const std::string& name) const {
  for (const auto& tenant : tenants_) {
    if (tenant->name() == name) return tenant;
  }
  return nullptr;
}

absl::Status TenantRegistry::AddNames(const std::vector<Sha256>& tokens, const std::vector<std::string>& certificates,
                                      const std::shared_ptr<Tenant>& tenant) {
  for (const Sha256& hash : tokens) {
    for (const Token& token : tokens_) {
      if (token.hash == hash) {
        return absl::AlreadyExistsError(absl::StrCat("it shares a token with \"", token.tenant->name(), "\""));
      }
    }
    tokens_.push_back({hash, tenant});
  }
  for (const std::string& certificate : certificates) {
    const auto [other, added] = certificates_.emplace(certificate, tenant);
    if (!added) {
      return absl::AlreadyExistsError(
          absl::StrCat("it shares certificate_name ", certificate, " with \"", other->second->name(), "\""));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<Tenant>> TenantRegistry::OwnerOfToken(std::string_view authorization) const {
  if (authorization.substr(0, kBearer.size()) != kBearer) {
    return Error(Reason::kCredentials, "the `authorization` metadata must be `Bearer TOKEN`");
  }
  const Sha256 hash = HashOf(authorization.substr(kBearer.size()));
  std::shared_ptr<Tenant> found;
  for (const Token& token : tokens_) {  // all of them, whichever it is
    if (CRYPTO_memcmp(token.hash.data(), hash.data(), hash.size()) == 0) found = token.tenant;
  }
  if (found == nullptr) return Error(Reason::kCredentials, "the bearer token is not one of this server's");
  return found;
}

absl::StatusOr<std::shared_ptr<Tenant>> TenantRegistry::OwnerOfCertificate(
    const std::vector<std::string>& names) const {
  std::shared_ptr<Tenant> found;
  for (const std::string& name : names) {
    const auto owner = certificates_.find(name);
    if (owner == certificates_.end() || owner->second == found) continue;
    if (found != nullptr) {
      return Error(Reason::kCredentials, absl::StrCat("the client certificate names two tenants, ", found->name(),
                                                      " and ", owner->second->name()));
    }
    found = owner->second;
  }
  if (found == nullptr) return Error(Reason::kCredentials, "no name in the client certificate is a tenant's");
  return found;
}

}  // namespace flashbob::server
