#include "client/cli/check.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "kernels/conformance/cases.h"
#include "kernels/convert.h"
#include "tests/kernels/reference_runner.h"

namespace flashbob::cli {
namespace {

using conformance::CaseSpec;
using conformance::ConformanceCase;

// Computes by the reference, and then does something to the outputs or answers with an error.
class TamperingBackend : public Backend {
 public:
  using Tamper = std::function<absl::Status(const Computation&, const TensorPointers&)>;

  explicit TamperingBackend(Tamper tamper, std::string device = "cpu")
      : tamper_(std::move(tamper)), device_(std::move(device)) {}

  absl::StatusOr<Outcome> Compute(const Computation& computation, const TensorPointers& tensors,
                                  const ProgressCallback&) override {
    absl::Status status = RunReference(computation, tensors);
    if (status.ok()) status = tamper_(computation, tensors);
    if (!status.ok()) return status;
    return Outcome{.device = device_};
  }

  absl::StatusOr<client::ServerInfo> Info() override {
    client::ServerInfo info;
    info.devices.push_back({.name = device_});
    return info;
  }

  absl::Status Health() override { return absl::OkStatus(); }

 private:
  const Tamper tamper_;
  const std::string device_;
};

absl::Status Nothing(const Computation&, const TensorPointers&) { return absl::OkStatus(); }

// Multiplies dk by a factor.
TamperingBackend::Tamper ScaleDk(double factor) {
  return [factor](const Computation& computation, const TensorPointers& tensors) {
    if (!computation.Wants(TensorName::kDk)) return absl::OkStatus();
    void* dk = tensors.Get(TensorName::kDk);
    const DType dtype = computation.problem().dtype();
    std::vector<double> values =
        ToDoubles(dtype, dk, static_cast<size_t>(computation.problem().NumElements(TensorName::kDk)));
    for (double& value : values) value *= factor;
    FromDoubles(dtype, values, dk);
    return absl::OkStatus();
  };
}

std::vector<ConformanceCase> TwoCases() {
  std::vector<ConformanceCase> cases;
  for (Operation operation : {Operation::kForward, Operation::kBackward}) {
    CaseSpec spec;
    spec.operation = operation;
    spec.dtype = DType::kFloat64;
    spec.heads = spec.kv_heads = 2;
    spec.query_len = spec.key_len = 9;
    spec.head_dim = spec.value_dim = 8;
    spec.seed = 1;
    cases.push_back(ConformanceCase::Create(spec).value());
  }
  return cases;
}

std::vector<CheckedCase> Check(TamperingBackend::Tamper tamper) {
  TamperingBackend backend(std::move(tamper));
  return RunCheck(backend, TwoCases(), [](double, const std::string&) {}).value();
}

TEST(CheckTest, RightResultsAreOk) {
  const std::vector<CheckedCase> checked = Check(Nothing);
  EXPECT_TRUE(AllOk(checked));
  const Json json = ToJson(checked);
  EXPECT_EQ(json["ok"], true);
  ASSERT_EQ(json["cases"].size(), 2u);
  const Json& backward = json["cases"][1];
  EXPECT_EQ(backward["operation"], "backward");
  EXPECT_EQ(backward["dtype"], "fp64");
  EXPECT_EQ(backward["mask"], "full");
  EXPECT_TRUE(backward["shape"].is_string());
  EXPECT_LE(backward["outputs"]["dq"]["error"], backward["bar"]);
  EXPECT_EQ(backward["outputs"].size(), 3u);
  EXPECT_EQ(backward["ok"], true);
  EXPECT_FALSE(backward.contains("failure"));
}

TEST(CheckTest, AnOutputOverItsBarFailsItsCaseAndTheCheck) {
  const std::vector<CheckedCase> checked = Check(ScaleDk(1 + 1e-9));
  EXPECT_FALSE(AllOk(checked));
  const Json json = ToJson(checked);
  EXPECT_EQ(json["ok"], false);
  EXPECT_EQ(json["cases"][0]["ok"], true);
  EXPECT_EQ(json["cases"][1]["ok"], false);
  EXPECT_NEAR(json["cases"][1]["outputs"]["dk"]["error"].get<double>(), 1e-9, 1e-12);
  EXPECT_LE(json["cases"][1]["outputs"]["dq"]["error"], 1e-12);
  EXPECT_NE(ToTable(checked).find("OVER"), std::string::npos);
}

TEST(CheckTest, NaNIsAnInfiniteErrorAndNullInJson) {
  const std::vector<CheckedCase> checked = Check(ScaleDk(std::nan("")));
  EXPECT_FALSE(AllOk(checked));
  const std::string text = ToJson(checked).dump();
  EXPECT_NE(text.find("\"dk\":{\"error\":null"), std::string::npos) << text;
}

TEST(CheckTest, ARefusedCaseFailsAndSaysWhy) {
  const std::vector<CheckedCase> checked = Check([](const Computation& computation, const TensorPointers&) {
    return computation.Wants(TensorName::kDk) ? absl::UnimplementedError("no backward today") : absl::OkStatus();
  });
  EXPECT_TRUE(checked[0].report.ok);
  EXPECT_FALSE(checked[1].report.ok);
  EXPECT_NE(ToJson(checked)["cases"][1]["failure"].get<std::string>().find("no backward today"), std::string::npos);
  EXPECT_NE(ToText(checked[1]).find("no backward today"), std::string::npos);
}

TEST(CheckTest, ABackendThatWentAwayEndsTheCheck) {
  TamperingBackend backend([](const Computation&, const TensorPointers&) { return absl::UnavailableError("gone"); });
  EXPECT_EQ(RunCheck(backend, TwoCases(), [](double, const std::string&) {}).status(), absl::UnavailableError("gone"));
}

TEST(CheckTest, AGpuIsJudgedByTheBarsOfGpus) {
  CaseSpec spec;
  spec.operation = Operation::kForward;
  spec.dtype = DType::kBFloat16;
  spec.query_len = spec.key_len = 1024;
  spec.head_dim = spec.value_dim = 8;
  spec.outputs = {TensorName::kO};
  const std::vector<ConformanceCase> cases = {ConformanceCase::Create(spec).value()};
  const auto bar_on = [&](const std::string& device) {
    TamperingBackend backend(Nothing, device);
    return RunCheck(backend, cases, [](double, const std::string&) {}).value().front().report.bar;
  };
  EXPECT_EQ(bar_on("cpu"), 2.0e-3);
  EXPECT_EQ(bar_on("cuda:0"), 2.7e-3);
}

TEST(CheckTest, TheTableHasTheWorstOfEachOutput) {
  const std::vector<CheckedCase> checked = Check(Nothing);
  const std::string table = ToTable(checked);
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 1 + 2 + 3) << table;
  EXPECT_EQ(table.find("OVER"), std::string::npos) << table;
}

}  // namespace
}  // namespace flashbob::cli
