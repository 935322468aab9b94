#include "server/base/trace_parent.h"

#include <gtest/gtest.h>

namespace flashbob::server {
namespace {

constexpr char kGood[] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

TEST(TraceParentTest, ReadsWhatTheStandardAllows) {
  const auto trace = ParseTraceParent(kGood);
  ASSERT_TRUE(trace.has_value());
  EXPECT_EQ(trace->trace_id, "4bf92f3577b34da6a3ce929d0e0e4736");
  EXPECT_EQ(trace->parent_id, "00f067aa0ba902b7");
  EXPECT_TRUE(trace->sampled);
  EXPECT_FALSE(ParseTraceParent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00")->sampled);
  EXPECT_TRUE(ParseTraceParent("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0f-what comes later")->sampled);
}

TEST(TraceParentTest, PassesOverWhatItForbids) {
  const std::string good = kGood;
  for (const std::string& bad : {
           std::string(),
           good.substr(0, 54),
           good + "0",
           good + "-more",               // version 00 has no more
           "cc" + good.substr(2) + "x",  // a later version has, after a '-'
           "ff" + good.substr(2),        // never a version
           "0G" + good.substr(2),        //
           std::string("00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01"),
           std::string("00-00000000000000000000000000000000-00f067aa0ba902b7-01"),
           std::string("00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01"),
           std::string("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0x"),
           std::string("00_4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
           std::string("00-4bf92f3577b34da6a3ce929d0e0e473\n-00f067aa0ba902b7-01"),
       }) {
    EXPECT_FALSE(ParseTraceParent(bad).has_value()) << bad;
  }
}

}  // namespace
}  // namespace flashbob::server
