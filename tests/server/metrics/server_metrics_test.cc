#include "server/metrics/server_metrics.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "server/base/errors.h"

namespace flashbob::server {
namespace {

std::string TextOf(ServerMetrics& metrics) { return metrics.Text(); }

void ExpectLine(const std::string& text, const std::string& line) {
  EXPECT_NE(text.find("\n" + line + "\n"), std::string::npos) << line << " in\n" << text;
}

TEST(ServerMetricsTest, EverySeriesIsThereBeforeItsFirstUse) {
  ServerMetrics metrics("1.2.3", {"cpu", "cuda:0"});
  metrics.tenants().Add("alpha");
  metrics.tenants().Add("beta");
  const std::string text = TextOf(metrics);
  for (const char* tenant : {"alpha", "beta"}) {
    const std::string of = std::string(",tenant=\"") + tenant + "\"} 0";
    ExpectLine(text, "flashbob_requests_total{code=\"RESOURCE_EXHAUSTED\",operation=\"double_backward\"" + of);
    ExpectLine(text, "flashbob_requests_total{code=\"INVALID_ARGUMENT\",operation=\"none\"" + of);
    ExpectLine(text, std::string("flashbob_tenant_held_bytes{tenant=\"") + tenant + "\"} 0");
  }
  ExpectLine(text, "flashbob_request_seconds_count{operation=\"jvp\"} 0");
  ExpectLine(text, "flashbob_calls_total{code=\"OK\",method=\"GetServerInfo\"} 0");
  for (Reason reason : kAllReasons) {
    ExpectLine(text, std::string("flashbob_errors_total{reason=\"") + Name(reason) + "\"} 0");
  }
  for (const char* stage : {"receive", "queue", "device", "send"}) {
    ExpectLine(text, std::string("flashbob_request_stage_seconds_count{stage=\"") + stage + "\"} 0");
  }
  ExpectLine(text, "flashbob_device_busy_seconds_total{device=\"cuda:0\"} 0");
  ExpectLine(text, "flashbob_requests_in_state{state=\"receiving\"} 0");
  ExpectLine(text, "flashbob_host_memory_largest_free_bytes 0");
  ExpectLine(text, "flashbob_device_memory_largest_free_bytes{device=\"cuda:0\"} 0");
  ExpectLine(text, "flashbob_build_info{version=\"1.2.3\"} 1");
}

TEST(ServerMetricsTest, UseAddsNoSeries) {
  ServerMetrics metrics("1", {"cpu"});
  const auto count = [&] {
    size_t series = 0;
    for (const auto& family : metrics.Collect()) series += family.metric.size();
    return series;
  };
  metrics.tenants().Add("alpha");
  for (size_t i = 0; i < TenantMetrics::kMostTenants; ++i)
    metrics.tenants().Add(std::string("t").append(std::to_string(i)));
  const size_t before = count();
  for (int code = 0; code < 20; ++code) {
    metrics.CountCall(Method::kCompute, static_cast<absl::StatusCode>(code));
    for (const char* tenant : {"alpha", "t0", "t99", "nobody that is known", ""}) {
      metrics.CountRequest(tenant, std::nullopt, static_cast<absl::StatusCode>(code), {});
    }
  }
  metrics.CountSlice(0, "another", {}, 1);
  metrics.tenants().Add("one more than have their own");
  metrics.CountError("BAD_SPEC");
  metrics.CountError("what a client made up");
  EXPECT_EQ(count(), before);
}

TEST(ServerMetricsTest, NamesFollowPrometheusConventions) {
  ServerMetrics metrics("1", {"cpu"});
  for (const prometheus::MetricFamily& family : metrics.Collect()) {
    EXPECT_EQ(family.name.rfind("flashbob_", 0), 0u) << family.name;
    EXPECT_FALSE(family.help.empty()) << family.name;
    const bool total = family.name.size() > 6 && family.name.substr(family.name.size() - 6) == "_total";
    EXPECT_EQ(total, family.type == prometheus::MetricType::Counter) << family.name;
    if (family.type == prometheus::MetricType::Histogram) {
      EXPECT_NE(family.name.find("_seconds"), std::string::npos) << family.name;
    }
  }
}

TEST(ServerMetricsTest, CountsWhatHappens) {
  ServerMetrics metrics("1", {"cpu"});
  metrics.tenants().Add("alpha");
  metrics.CountRequest("alpha", Operation::kJvp, absl::StatusCode::kOk, std::chrono::milliseconds(20));
  metrics.CountRequest("alpha", Operation::kJvp, absl::StatusCode::kDataLoss, {});
  metrics.CountError("TOO_LARGE");
  metrics.Observe(Stage::kQueue, std::chrono::milliseconds(2));
  metrics.AddBytesReceived(100);
  metrics.CountSlice(0, "alpha", std::chrono::milliseconds(500), 1000);
  metrics.CountCopy(0, Direction::kToDevice, 4096, std::chrono::milliseconds(250));
  const std::string text = TextOf(metrics);
  ExpectLine(text, "flashbob_requests_total{code=\"OK\",operation=\"jvp\",tenant=\"alpha\"} 1");
  ExpectLine(text, "flashbob_requests_total{code=\"UNKNOWN\",operation=\"jvp\",tenant=\"alpha\"} 1");
  ExpectLine(text, "flashbob_request_seconds_count{operation=\"jvp\"} 1");
  ExpectLine(text, "flashbob_tenant_device_seconds_total{tenant=\"alpha\"} 0.5");
  ExpectLine(text, "flashbob_errors_total{reason=\"TOO_LARGE\"} 1");
  ExpectLine(text, "flashbob_request_stage_seconds_bucket{stage=\"queue\",le=\"0.001\"} 0");
  ExpectLine(text, "flashbob_request_stage_seconds_bucket{stage=\"queue\",le=\"0.003\"} 1");
  ExpectLine(text, "flashbob_received_bytes_total 100");
  ExpectLine(text, "flashbob_device_slices_total{device=\"cpu\"} 1");
  ExpectLine(text, "flashbob_device_busy_seconds_total{device=\"cpu\"} 0.5");
  ExpectLine(text, "flashbob_device_flops_total{device=\"cpu\"} 1000");
  ExpectLine(text, "flashbob_device_copied_bytes_total{device=\"cpu\",direction=\"to_device\"} 4096");
  ExpectLine(text, "flashbob_device_copied_bytes_total{device=\"cpu\",direction=\"to_host\"} 0");
  ExpectLine(text, "flashbob_device_copy_seconds_total{device=\"cpu\",direction=\"to_device\"} 0.25");
}

TEST(ServerMetricsTest, GaugesAreReadAtEachScrape) {
  ServerMetrics metrics("1", {"cpu"});
  int64_t running = 0;
  metrics.SetGaugeSource([&] {
    ServerMetrics::Gauges gauges;
    gauges.requests[static_cast<size_t>(RequestState::kReady)] = ++running;
    gauges.requests[static_cast<size_t>(RequestState::kReceiving)] = 10;
    gauges.host_memory.reserved_bytes = 4096;
    gauges.devices = {{100, 77, 90, 23}};
    gauges.tenants = {{"alpha", 12, 3}};
    gauges.stored_tensors = 5;
    gauges.certificate_expiry = 1.8e9;
    gauges.draining = true;
    return gauges;
  });
  metrics.tenants().Add("alpha");
  TextOf(metrics);
  const std::string text = TextOf(metrics);
  ExpectLine(text, "flashbob_requests_in_state{state=\"ready\"} 2");
  ExpectLine(text, "flashbob_queue_depth 12");
  ExpectLine(text, "flashbob_host_memory_reserved_bytes 4096");
  ExpectLine(text, "flashbob_device_memory_reserved_bytes{device=\"cpu\"} 77");
  ExpectLine(text, "flashbob_device_memory_limit_bytes{device=\"cpu\"} 100");
  ExpectLine(text, "flashbob_tenant_held_bytes{tenant=\"alpha\"} 12");
  ExpectLine(text, "flashbob_tenant_requests_in_flight{tenant=\"alpha\"} 3");
  ExpectLine(text, "flashbob_store_tensors 5");
  ExpectLine(text, "flashbob_tls_certificate_expiry_timestamp_seconds 1800000000");
  ExpectLine(text, "flashbob_draining 1");
}

}  // namespace
}  // namespace flashbob::server
