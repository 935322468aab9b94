#include "server/auth/tenant_registry.h"

#include <gtest/gtest.h>

#include <string>

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

std::string ErrorOf(const std::string& text) {
  return std::string(TenantRegistry::FromText("tenants.txt", text).status().message());
}

TEST(TenantRegistryTest, WithoutTenantsEverybodyIsDefault) {
  const TenantRegistry registry;
  EXPECT_EQ((*registry.Authenticate(std::nullopt))->settings().name, "default");
  EXPECT_EQ((*registry.Authenticate("Bearer whatever"))->settings().name, "default");
}

TEST(TenantRegistryTest, TokenNamesItsTenant) {
  const auto registry = TenantRegistry::FromText("tenants.txt", Tenants());
  ASSERT_TRUE(registry.ok()) << registry.status();
  const Tenant& alpha = **registry->Authenticate("Bearer alpha-token");
  EXPECT_EQ(alpha.settings().name, "alpha");
  EXPECT_EQ(alpha.settings().weight, 3);
  EXPECT_EQ(alpha.settings().max_bytes, 1000);
  EXPECT_EQ(alpha.settings().max_in_flight, 4);
  EXPECT_EQ(alpha.settings().priority, 2);
  const Tenant& beta = **registry->Authenticate("Bearer beta-token");
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
    const absl::Status refusal = registry->Authenticate(header).status();
    EXPECT_EQ(refusal.code(), absl::StatusCode::kUnauthenticated) << header.value_or("none");
    EXPECT_EQ(ReasonOf(refusal), "CREDENTIALS");
    EXPECT_FALSE(RetryDelayOf(refusal).has_value());
  }
}

TEST(TenantRegistryTest, OneTenantMayHaveSeveralTokens) {
  const auto registry = TenantRegistry::FromText(
      "t", std::string("tenants { name: \"a\" token_sha256: \"") + kAlpha + "\" token_sha256: \"" + kBeta + "\" }");
  ASSERT_TRUE(registry.ok()) << registry.status();
  EXPECT_EQ(*registry->Authenticate("Bearer alpha-token"), *registry->Authenticate("Bearer beta-token"));
}

TEST(TenantRegistryTest, WrongFilesNameWhatIsWrong) {
  EXPECT_EQ(ErrorOf(""), "tenants.txt: it names no tenant");
  EXPECT_EQ(ErrorOf("tenants {\n  nam: \"x\" }").substr(0, 15), "tenants.txt:2:6");
  EXPECT_EQ(ErrorOf("tenants { name: \"x\" }"), "tenants.txt: tenant \"x\": it has no token_sha256");
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

TEST(TenantRegistryTest, FileThatIsNotThereIsNamed) {
  EXPECT_NE(std::string(TenantRegistry::FromFile("/no/such/file").status().message()).find("/no/such/file"),
            std::string::npos);
}

}  // namespace
}  // namespace flashbob::server
