#include "server/metrics/server_metrics.h"

#include <gtest/gtest.h>
#include <prometheus/text_serializer.h>

#include <map>
#include <set>

#include "server/base/errors.h"
#include "server/metrics/metrics_endpoint.h"

namespace flashbob::server {
namespace {

std::string TextOf(const ServerMetrics& metrics) { return prometheus::TextSerializer().Serialize(metrics.Collect()); }

void ExpectLine(const std::string& text, const std::string& line) {
  EXPECT_NE(text.find("\n" + line + "\n"), std::string::npos) << line << " in\n" << text;
}

TEST(ServerMetricsTest, EverySeriesIsThereBeforeItsFirstUse) {
  const ServerMetrics metrics("1.2.3", {"cpu", "cuda:0"});
  const std::string text = TextOf(metrics);
  ExpectLine(text, "flashbob_requests_total{code=\"RESOURCE_EXHAUSTED\",operation=\"double_backward\"} 0");
  ExpectLine(text, "flashbob_requests_total{code=\"INVALID_ARGUMENT\",operation=\"none\"} 0");
  ExpectLine(text, "flashbob_calls_total{code=\"OK\",method=\"GetServerInfo\"} 0");
  for (Reason reason : kAllReasons) {
    ExpectLine(text, std::string("flashbob_errors_total{reason=\"") + Name(reason) + "\"} 0");
  }
  for (const char* stage : {"receive", "queue", "compute", "send"}) {
    ExpectLine(text, std::string("flashbob_request_stage_seconds_count{stage=\"") + stage + "\"} 0");
  }
  ExpectLine(text, "flashbob_device_busy_seconds_total{device=\"cuda:0\"} 0");
  ExpectLine(text, "flashbob_requests_in_state{state=\"receiving\"} 0");
  ExpectLine(text, "flashbob_build_info{version=\"1.2.3\"} 1");
}

TEST(ServerMetricsTest, UseAddsNoSeries) {
  ServerMetrics metrics("1", {"cpu"});
  const auto count = [&] {
    size_t series = 0;
    for (const auto& family : metrics.Collect()) series += family.metric.size();
    return series;
  };
  const size_t before = count();
  for (int code = 0; code < 20; ++code) {
    metrics.CountCall(Method::kCompute, static_cast<absl::StatusCode>(code));
    metrics.CountRequest(std::nullopt, static_cast<absl::StatusCode>(code));
  }
  metrics.CountError("BAD_SPEC");
  metrics.CountError("what a client made up");
  EXPECT_EQ(count(), before);
}

TEST(ServerMetricsTest, NamesFollowPrometheusConventions) {
  const ServerMetrics metrics("1", {"cpu"});
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
  metrics.CountRequest(Operation::kJvp, absl::StatusCode::kOk);
  metrics.CountError("TOO_LARGE");
  metrics.Observe(Stage::kQueue, std::chrono::milliseconds(2));
  metrics.AddBytesReceived(100);
  metrics.CountSlice(0, std::chrono::milliseconds(500), 1000);
  const std::string text = TextOf(metrics);
  ExpectLine(text, "flashbob_requests_total{code=\"OK\",operation=\"jvp\"} 1");
  ExpectLine(text, "flashbob_errors_total{reason=\"TOO_LARGE\"} 1");
  ExpectLine(text, "flashbob_request_stage_seconds_bucket{stage=\"queue\",le=\"0.001\"} 0");
  ExpectLine(text, "flashbob_request_stage_seconds_bucket{stage=\"queue\",le=\"0.003\"} 1");
  ExpectLine(text, "flashbob_received_bytes_total 100");
  ExpectLine(text, "flashbob_device_slices_total{device=\"cpu\"} 1");
  ExpectLine(text, "flashbob_device_busy_seconds_total{device=\"cpu\"} 0.5");
  ExpectLine(text, "flashbob_device_flops_total{device=\"cpu\"} 1000");
}

TEST(ServerMetricsTest, GaugesAreReadAtEachScrape) {
  ServerMetrics metrics("1", {"cpu"});
  int64_t running = 0;
  metrics.SetGaugeSource([&] {
    ServerMetrics::Gauges gauges;
    gauges.requests[static_cast<size_t>(RequestState::kReady)] = ++running;
    gauges.requests[static_cast<size_t>(RequestState::kReceiving)] = 10;
    gauges.host_memory.reserved_bytes = 4096;
    gauges.device_reserved_bytes = {77};
    gauges.draining = true;
    return gauges;
  });
  TextOf(metrics);
  const std::string text = TextOf(metrics);
  ExpectLine(text, "flashbob_requests_in_state{state=\"ready\"} 2");
  ExpectLine(text, "flashbob_queue_depth 12");
  ExpectLine(text, "flashbob_host_memory_reserved_bytes 4096");
  ExpectLine(text, "flashbob_device_memory_reserved_bytes{device=\"cpu\"} 77");
  ExpectLine(text, "flashbob_draining 1");
}

TEST(MetricsEndpointTest, PortThatIsTakenIsAnErrorThatNamesIt) {
  const auto metrics = std::make_shared<ServerMetrics>("1", std::vector<std::string>{"cpu"});
  const auto first = MetricsEndpoint::Start("127.0.0.1:0", metrics);
  ASSERT_TRUE(first.ok()) << first.status();
  const std::string taken = "127.0.0.1:" + std::to_string((*first)->port());
  const auto second = MetricsEndpoint::Start(taken, metrics);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(second.status().message().find(taken), std::string::npos) << second.status();
}

}  // namespace
}  // namespace flashbob::server
