#include "client/cli/progress_bar.h"

#include <gtest/gtest.h>

#include <limits>
#include <sstream>

namespace flashbob::cli {
namespace {

using std::chrono::milliseconds;

class ProgressBarTest : public ::testing::Test {
 protected:
  ProgressBar::Now now() {
    return [this] { return now_; };
  }

  std::chrono::steady_clock::time_point now_;
  std::ostringstream out_;
};

TEST_F(ProgressBarTest, ShowsNothingWithinTheFirstSecond) {
  {
    ProgressBar bar(out_, /*enabled=*/true, now());
    now_ += milliseconds(999);
    bar.Update(0.5, "computing");
  }
  EXPECT_EQ(out_.str(), "");
}

TEST_F(ProgressBarTest, ShowsShareAndWorkThenAndIsGoneInTheEnd) {
  {
    ProgressBar bar(out_, /*enabled=*/true, now());
    now_ += milliseconds(1000);
    bar.Update(0.25, "computing");
    EXPECT_EQ(out_.str(), "\r\x1b[K[##########                              ]  25 % computing");
  }
  EXPECT_TRUE(out_.str().ends_with("\r\x1b[K"));
}

TEST_F(ProgressBarTest, IsDrawnTenTimesASecondAtMost) {
  ProgressBar bar(out_, /*enabled=*/true, now());
  now_ += milliseconds(1000);
  bar.Update(0.1, "x");
  const size_t once = out_.str().size();
  now_ += milliseconds(99);
  bar.Update(0.2, "x");
  EXPECT_EQ(out_.str().size(), once);
  now_ += milliseconds(1);
  bar.Update(0.2, "x");
  EXPECT_EQ(out_.str().size(), 2 * once);
}

TEST_F(ProgressBarTest, SharesThatMakeNoSenseAreCut) {
  ProgressBar bar(out_, /*enabled=*/true, now());
  for (double share : {std::numeric_limits<double>::quiet_NaN(), -1.0, 0.0}) {
    now_ += milliseconds(1000);
    out_.str("");
    bar.Update(share, "x");
    EXPECT_NE(out_.str().find("  0 % x"), std::string::npos) << share;
  }
  for (double share : {1.0, 7.0, std::numeric_limits<double>::infinity()}) {
    now_ += milliseconds(1000);
    out_.str("");
    bar.Update(share, "x");
    EXPECT_NE(out_.str().find("100 % x"), std::string::npos) << share;
  }
}

TEST_F(ProgressBarTest, ShowsNothingWhereItIsNotEnabled) {
  {
    ProgressBar bar(out_, /*enabled=*/false, now());
    now_ += milliseconds(5000);
    bar.Update(0.5, "x");
  }
  EXPECT_EQ(out_.str(), "");
}

}  // namespace
}  // namespace flashbob::cli
