// Fuzzes the texts that strangers send beside tensors: metadata (traceparent, authorization, certificates' names),
// handles, request ids. The first byte says which; the rest is the text.
//
// Promises: a trace that is read has the form of the standard and is what the header says. No text but the token opens
// a tenant, and every stranger is told the same. No text but the handle, from its own tenant, opens or deletes a
// tensor. Exactly the request ids that can be logged are taken.
#include <algorithm>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "server/auth/tenant_registry.h"
#include "server/base/errors.h"
#include "server/base/trace_parent.h"
#include "server/service/spec.h"
#include "server/store/tensor_store.h"
#include "tests/fuzz/check.h"
#include "tests/server/testing/step_clock.h"
#include "tests/server/testing/stepped_engine.h"

namespace flashbob::fuzz {
namespace {

bool IsLowerHex(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

void TestTraceParent(const std::string& text) {
  const auto trace = server::ParseTraceParent(text);
  if (!trace.has_value()) return;
  Check(trace->trace_id.size() == 32 && IsLowerHex(trace->trace_id), "a trace id is 32 digits", trace->trace_id);
  Check(trace->parent_id.size() == 16 && IsLowerHex(trace->parent_id), "a parent id is 16 digits", trace->parent_id);
  Check(trace->trace_id.find_first_not_of('0') != std::string::npos, "a trace id is not all zeros");
  Check(trace->parent_id.find_first_not_of('0') != std::string::npos, "a parent id is not all zeros");
  Check(text.find(absl::StrCat("-", trace->trace_id, "-", trace->parent_id, "-")) == 2, "a trace is the header's",
        text);
  const std::string again = absl::StrCat("00-", trace->trace_id, "-", trace->parent_id, trace->sampled ? "-01" : "-00");
  const auto same = server::ParseTraceParent(again);
  Check(same.has_value() && same->sampled == trace->sampled, "a trace that was read can be passed on", again);
}

constexpr char kTenants[] = R"(
  tenants { name: "alpha" token_sha256: "8ed3f6ad685b959ead7022518e1af76cd816f8e8ec7ccdda1ed4018e8f2223f8" }
  tenants { name: "beta" certificate_name: "beta.example" })";  // alpha's token is "alpha"

// What is said to strangers with other texts.
const std::set<std::string>& RefusalsOfOthers(const server::TenantRegistry& registry) {
  static const std::set<std::string> refusals = [&] {
    std::set<std::string> texts;
    for (const char* other : {"other", "Bearer other", "Bearer alpha"}) {
      texts.emplace(registry.Authenticate({other, {"beta.example"}}).status().message());
    }
    texts.emplace(registry.Authenticate({std::nullopt, {"other"}}).status().message());
    return texts;
  }();
  return refusals;
}

void TestCredentials(const std::string& text) {
  static const server::TenantRegistry registry = *server::TenantRegistry::FromText("tenants", kTenants);
  const auto by_token = registry.Authenticate({text, {}});
  Check(by_token.ok() == (text == "Bearer alpha"), "no text but the token opens its tenant", text);
  const auto by_name = registry.Authenticate({std::nullopt, {text}});
  Check(by_name.ok() == (text == "beta.example"), "no name but its own opens a tenant", text);
  const auto by_both = registry.Authenticate({text, {"beta.example"}});
  Check(!by_both.ok(), "who is two tenants is nobody", text);
  for (const auto& refused : {by_token, by_name, by_both}) {
    if (refused.ok()) continue;
    Check(absl::IsUnauthenticated(refused.status()) && server::ReasonOf(refused.status()) == "CREDENTIALS",
          "a stranger is told so", refused.status().ToString());
    Check(RefusalsOfOthers(registry).count(std::string(refused.status().message())) == 1,
          "an error says the same to every stranger, whatever it showed", refused.status().ToString());
  }
}

// A store with one tensor of the tenant a.
class Store {
 public:
  Store() : pool_(engine_, clock_, 1 << 20), store_(clock_, {"node7", 1 << 20}) {
    server::Reservation reservation = *pool_.TryReserve(4096);
    server::StoreRoom room = *store_.Reserve(4096);
    server::TensorStore::Item item;
    item.request_id = "r";
    item.info = {TensorName::kQ, DType::kFloat32, {1, 1, 32, 32}};
    item.bytes = *pool_.Allocate(reservation, 4096);
    handle_ = store_.Put(*a_, room, std::move(item));
  }

  void Test(const std::string& text) {
    // As it is, and in the handle's place.
    std::string near = handle_;
    near.replace(std::min(near.size(), text.size() % 40), text.size() / 2, text.substr(text.size() / 2));
    for (const std::string& tried : {text, near}) {
      const auto own = store_.Get(*a_, tried);
      Check(own.ok() == (tried == handle_), "no text but the handle opens a tensor", tried);
      if (!own.ok()) Check(server::ReasonOf(own.status()) == "HANDLE", "an unknown handle is refused as such");
      Check(!store_.Get(*b_, tried).ok(), "a handle opens nothing for another tenant", tried);
      Check(store_.Delete(*b_, {tried, tried}) == 0, "a handle deletes nothing for another tenant", tried);
      if (tried != handle_) Check(store_.Delete(*a_, {tried}) == 0, "no text but the handle deletes a tensor", tried);
    }
    Check(store_.GetUse().tensors == 1 && store_.Get(*a_, handle_).ok(), "a tensor stays");
  }

 private:
  server::StepClock clock_;
  server::SteppedEngine engine_;
  server::HostMemoryPool pool_;
  server::TensorStore store_;
  const std::shared_ptr<server::Tenant> a_ = server::Tenant::Create({.name = "a"});
  const std::shared_ptr<server::Tenant> b_ = server::Tenant::Create({.name = "b"});
  std::string handle_;
};

void TestRequestId(const std::string& text) {
  const absl::Status status = server::CheckRequestId(text);
  Check(status.ok() == (text.size() <= server::kMaxRequestIdBytes && IsPrintable(text)),
        "exactly the ids that can be logged are taken", text);
  Check(IsPrintable(std::string(status.message())), "an error can be logged", status.ToString());
}

}  // namespace
}  // namespace flashbob::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace flashbob::fuzz;  // NOLINT: a main of its kind
  if (size == 0) return 0;
  static Store store;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 4) {
    case 0:
      TestTraceParent(text);
      break;
    case 1:
      TestCredentials(text);
      break;
    case 2:
      store.Test(text);
      break;
    default:
      TestRequestId(text);
  }
  return 0;
}
