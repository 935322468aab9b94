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
  if (tenant.token_sha256().empty()) return absl::InvalidArgumentError("it has no token_sha256");
  return absl::OkStatus();
}

}  // namespace

TenantRegistry::TenantRegistry() { tenants_.push_back(Tenant::Create({})); }

absl::StatusOr<TenantRegistry> TenantRegistry::FromFile(const std::string& path) {
  FLASHBOB_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  return FromText(path, text);
}

absl::StatusOr<TenantRegistry> TenantRegistry::FromText(const std::string& name, const std::string& text) {
  config::Tenants parsed;
  FLASHBOB_RETURN_IF_ERROR(ParseTextFormat(name, text, parsed));
  if (parsed.tenants().empty()) return absl::InvalidArgumentError(absl::StrCat(name, ": it names no tenant"));
  TenantRegistry registry;
  registry.tenants_.clear();
  for (const config::TenantConfig& config : parsed.tenants()) {
    const auto wrong = [&](const absl::Status& status) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": tenant \"", config.name(), "\": ", std::string(status.message())));
    };
    const absl::Status checked = Check(config);
    if (!checked.ok()) return wrong(checked);
    for (const auto& other : registry.tenants_) {
      if (other->settings().name == config.name()) return wrong(absl::AlreadyExistsError("it is named twice"));
    }
    Tenant::Settings settings;
    settings.name = config.name();
    settings.weight = config.has_weight() ? config.weight() : 1;
    settings.priority = config.priority();
    settings.max_bytes = config.max_bytes();
    settings.max_in_flight = config.max_in_flight();
    registry.tenants_.push_back(Tenant::Create(std::move(settings)));
    for (const std::string& digits : config.token_sha256()) {
      const absl::StatusOr<Sha256> hash = ParseHash(digits);
      if (!hash.ok()) return wrong(hash.status());
      for (const Token& token : registry.tokens_) {
        if (token.hash == *hash) {
          return wrong(
              absl::AlreadyExistsError(absl::StrCat("it shares a token with \"", token.tenant->settings().name, "\"")));
        }
      }
      registry.tokens_.push_back({*hash, registry.tenants_.back()});
    }
  }
  return registry;
}

absl::StatusOr<std::shared_ptr<Tenant>> TenantRegistry::Authenticate(
    std::optional<std::string_view> authorization) const {
  if (tokens_.empty()) return tenants_.front();
  if (!authorization.has_value()) {
    return Error(Reason::kCredentials, "this server needs a bearer token: metadata `authorization: Bearer TOKEN`");
  }
  if (authorization->substr(0, kBearer.size()) != kBearer) {
    return Error(Reason::kCredentials, "the `authorization` metadata must be `Bearer TOKEN`");
  }
  const Sha256 hash = HashOf(authorization->substr(kBearer.size()));
  std::shared_ptr<Tenant> found;
  for (const Token& token : tokens_) {  // all of them, whichever it is
    if (CRYPTO_memcmp(token.hash.data(), hash.data(), hash.size()) == 0) found = token.tenant;
  }
  if (found == nullptr) return Error(Reason::kCredentials, "the bearer token is not one of this server's");
  return found;
}

}  // namespace flashbob::server
