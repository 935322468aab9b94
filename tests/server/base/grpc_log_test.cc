#include "server/base/grpc_log.h"

#include <grpc/support/log.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "spdlog/sinks/ostream_sink.h"
#include "tests/server/testing/step_clock.h"

namespace flashbob::server {
namespace {

class GrpcLogTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { gpr_log_verbosity_init(); }  // as grpc_init does

  // Lines written since the last call.
  std::string Written() {
    std::string text = text_.str();
    text_.str("");
    return text;
  }
  static int64_t LinesIn(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }

  std::ostringstream text_;
  EventLog log_{LogLevel::kInfo, LogFormat::kText, std::make_shared<spdlog::sinks::ostream_sink_mt>(text_)};
  StepClock clock_;
};

TEST_F(GrpcLogTest, LineOfGrpcIsALineOfTheServer) {
  const GrpcLog grpc_log(log_, clock_);
  gpr_log("/source/of/transport.cc", 42, GPR_LOG_SEVERITY_ERROR, "handshake of %s failed\nat once", "a stranger");
  const std::string written = Written();
  EXPECT_EQ(LinesIn(written), 1) << written;
  EXPECT_NE(written.find("warning grpc source=transport.cc:42 text=\"handshake of a stranger failed\\nat once\"\n"),
            std::string::npos)
      << written;
}

TEST_F(GrpcLogTest, StrangersCannotFillTheLog) {
  const GrpcLog grpc_log(log_, clock_);
  for (int i = 0; i < 1000; ++i) gpr_log(GPR_ERROR, "handshake %d failed", i);
  std::string written = Written();
  EXPECT_EQ(LinesIn(written), GrpcLog::kLinesAMinute);
  EXPECT_NE(written.find("left out"), std::string::npos) << "it says so";

  clock_.Step(std::chrono::seconds(59));
  gpr_log(GPR_ERROR, "one more");
  EXPECT_EQ(Written(), "");
  clock_.Step(std::chrono::seconds(1));
  gpr_log(GPR_ERROR, "one in the next minute");
  gpr_log(GPR_ERROR, "another");
  written = Written();
  EXPECT_EQ(LinesIn(written), 2) << written;
  EXPECT_NE(written.find("left_out_before=981"), std::string::npos) << written;
  EXPECT_EQ(written.find("left_out_before"), written.rfind("left_out_before")) << "it says so once";
}

TEST_F(GrpcLogTest, GrpcHasItsOwnLogAgainAfterIt) {
  { const GrpcLog grpc_log(log_, clock_); }
  testing::internal::CaptureStderr();
  gpr_log(GPR_ERROR, "for stderr");
  EXPECT_NE(testing::internal::GetCapturedStderr().find("for stderr"), std::string::npos);
  EXPECT_EQ(Written(), "");
}

}  // namespace
}  // namespace flashbob::server
