#include "server/auth/tenant_registry.h"

#include <gtest/gtest.h>

#include <string>

#include "server/auth/authenticator.h"
#include "server/base/errors.h"

namespace flashbob::server {
namespace {

// sha256sum of "alpha-token" and "beta-token".
constexpr char kAlpha[] = "a336d9b1d8b8647875238537ca5087b0ea335afd2032936aecdffc3e4b13f720";
constexpr char kBeta[] = "863d63c0bd3a94bfca84ed2063a7355a226faff82ca50b90158bf183aa1a9e61";

std::string Tenants(const std::string& more = "") {
  return std::string(
             "tenants { name: \"alpha\" weight: 3 max_bytes: 1000 max_in_flight: 4 priority: 2 token_sha256: \"") +
         kAlpha + "\" }\ntenants { name: \"beta\" token_sha256: \"" + kBeta + "\" }\n" + more;
}

Credentials Token(std::string_view header) { return {header, {}}; }

std::string ErrorOf(const std::string& text) {
  return std::string(TenantRegistry::FromText("tenants.txt", text).status().message());
}

TEST(TenantRegistryTest, WithoutTenantsEverybodyIsDefault) {
  const TenantRegistry registry;
  EXPECT_EQ((*registry.Authenticate({}))->settings().name, "default");
  EXPECT_EQ((*registry.Authenticate(Token("Bearer whatever")))->settings().name, "default");
}

TEST(TenantRegistryTest, TokenNamesItsTenant) {
  const auto registry = TenantRegistry::FromText("tenants.txt", Tenants());
  ASSERT_TRUE(registry.ok()) << registry.status();
  const Tenant& alpha = **registry->Authenticate(Token("Bearer alpha-token"));
  EXPECT_EQ(alpha.settings().name, "alpha");
  EXPECT_EQ(alpha.settings().weight, 3);
  EXPECT_EQ(alpha.settings().max_bytes, 1000);
  EXPECT_EQ(alpha.settings().max_in_flight, 4);
  EXPECT_EQ(alpha.settings().priority, 2);
  const Tenant& beta = **registry->Authenticate(Token("Bearer beta-token"));
  EXPECT_EQ(beta.settings().name, "beta");
  EXPECT_EQ(beta.settings().weight, 1);
}

TEST(TenantRegistryTest, LackingAndWrongCredentialsAreRefused) {
  const auto registry = TenantRegistry::FromText("tenants.txt", Tenants());
  ASSERT_TRUE(registry.ok());
  for (const std::optional<std::string_view> header :
       {std::optional<std::string_view>(), std::optional<std::string_view>(""),
        std::optional<std::string_view>("alpha-token"), std::optional<std::string_view>("Basic alpha-token"),
        std::optional<std::string_view>("Bearer "), std::optional<std::string_view>("Bearer alpha-token "),
        std::optional<std::string_view>("Bearer ALPHA-TOKEN"), std::optional<std::string_view>(kAlpha)}) {
    const absl::Status refusal = registry->Authenticate({header, {}}).status();
    EXPECT_EQ(refusal.code(), absl::StatusCode::kUnauthenticated) << header.value_or("none");
    EXPECT_EQ(ReasonOf(refusal), "CREDENTIALS");
    EXPECT_FALSE(RetryDelayOf(refusal).has_value());
  }
}

TEST(TenantRegistryTest, OneTenantMayHaveSeveralTokens) {
  const auto registry = TenantRegistry::FromText(
      "t", std::string("tenants { name: \"a\" token_sha256: \"") + kAlpha + "\" token_sha256: \"" + kBeta + "\" }");
  ASSERT_TRUE(registry.ok()) << registry.status();
  EXPECT_EQ(*registry->Authenticate(Token("Bearer alpha-token")), *registry->Authenticate(Token("Bearer beta-token")));
}

TEST(TenantRegistryTest, WrongFilesNameWhatIsWrong) {
  EXPECT_EQ(ErrorOf(""), "tenants.txt: it names no tenant");
  EXPECT_EQ(ErrorOf("tenants {\n  nam: \"x\" }").substr(0, 15), "tenants.txt:2:6");
  EXPECT_EQ(ErrorOf("tenants { name: \"x\" }"),
            "tenants.txt: tenant \"x\": it has no token_sha256 and no certificate_name");
  EXPECT_NE(ErrorOf("tenants { name: \"x\" token_sha256: \"secret\" }").find("6 characters"), std::string::npos);
  EXPECT_NE(ErrorOf(Tenants("tenants { name: \"x y\" }")).find("letters"), std::string::npos);
  EXPECT_NE(ErrorOf(Tenants("tenants { name: \"x\" weight: 0 }")).find("weight is 0"), std::string::npos);
  EXPECT_NE(ErrorOf(Tenants("tenants { name: \"x\" max_bytes: -5 }")).find("-5"), std::string::npos);
  EXPECT_NE(ErrorOf(Tenants("tenants { name: \"x\" priority: 200 }")).find("200"), std::string::npos);
  EXPECT_NE(ErrorOf(Tenants(std::string("tenants { name: \"beta\" token_sha256: \"") + kBeta + "\" }")).find("twice"),
            std::string::npos);
  EXPECT_NE(ErrorOf(Tenants(std::string("tenants { name: \"x\" token_sha256: \"") + kBeta + "\" }"))
                .find("shares a token with \"beta\""),
            std::string::npos);
}

TEST(TenantRegistryTest, CertificateNamesItsTenantAndMustNotContradictTheToken) {
  const auto registry = TenantRegistry::FromText(
      "t", std::string("tenants { name: \"a\" certificate_name: \"spiffe://a\" certificate_name: \"a.example\" }\n") +
               "tenants { name: \"b\" certificate_name: \"b.example\" token_sha256: \"" + kBeta + "\" }");
  ASSERT_TRUE(registry.ok()) << registry.status();
  const auto tenant_of = [&](const Credentials& credentials) {
    const auto tenant = registry->Authenticate(credentials);
    return tenant.ok() ? (*tenant)->name() : std::string(ReasonOf(tenant.status()));
  };
  EXPECT_EQ(tenant_of({std::nullopt, {"other", "spiffe://a"}}), "a");
  EXPECT_EQ(tenant_of({std::nullopt, {"a.example", "spiffe://a"}}), "a");
  EXPECT_EQ(tenant_of({"Bearer beta-token", {"b.example"}}), "b");
  EXPECT_EQ(tenant_of({"Bearer beta-token", {"nobody"}}), "b");
  for (const Credentials& credentials :
       {Credentials{std::nullopt, {"nobody"}}, Credentials{std::nullopt, {"A.EXAMPLE"}},
        Credentials{std::nullopt, {"a.example", "b.example"}}, Credentials{"Bearer beta-token", {"a.example"}},
        Credentials{"Bearer wrong", {"a.example"}}, Credentials{}}) {
    EXPECT_EQ(tenant_of(credentials), "CREDENTIALS");
  }
}

TEST(TenantRegistryTest, TenantThatStaysKeepsWhatItHoldsUnderItsNewSettings) {
  const auto before = TenantRegistry::FromText("t", Tenants());
  ASSERT_TRUE(before.ok());
  const std::shared_ptr<Tenant> alpha = *before->Authenticate(Token("Bearer alpha-token"));
  const auto hold = alpha->Hold(800, 1);
  ASSERT_TRUE(hold.ok());

  const auto wrong = TenantRegistry::FromText(
      "t", std::string("tenants { name: \"alpha\" max_bytes: 5 token_sha256: \"") + kBeta + "\" }\ntenants {}",
      &*before);
  EXPECT_FALSE(wrong.ok());
  EXPECT_EQ(alpha->settings().max_bytes, 1000) << "a file with an error in it changes nothing";

  const auto after = TenantRegistry::FromText(
      "t", std::string("tenants { name: \"alpha\" max_bytes: 500 token_sha256: \"") + kBeta + "\" }", &*before);
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_EQ(*after->Authenticate(Token("Bearer beta-token")), alpha);
  EXPECT_FALSE(after->Authenticate(Token("Bearer alpha-token")).ok());
  EXPECT_EQ(alpha->GetUse().bytes, 800);
  EXPECT_EQ(ReasonOf(alpha->Hold(1, 0).status()), "QUOTA");
}

TEST(AuthenticatorTest, FileThatIsNotThereIsNamed) {
  EXPECT_NE(std::string(Authenticator::Create("/no/such/file").status().message()).find("/no/such/file"),
            std::string::npos);
}

}  // namespace
}  // namespace flashbob::server
