#include "client/cli/problem_flags.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace flashbob::cli {
namespace {

// What a command line with these flags means; the parser's own errors count as INVALID_ARGUMENT.
absl::StatusOr<ProblemOptions> Parse(std::vector<std::string> arguments) {
  CLI::App app;
  ProblemFlags flags;
  AddProblemFlags(app, flags);
  std::reverse(arguments.begin(), arguments.end());  // as this overload wants them
  try {
    app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    return absl::InvalidArgumentError(error.what());
  }
  return ToProblemOptions(flags);
}

ProblemOptions ParseOrDie(const std::vector<std::string>& arguments) {
  const absl::StatusOr<ProblemOptions> options = Parse(arguments);
  EXPECT_TRUE(options.ok()) << options.status();
  return options.value_or(ProblemOptions());
}

TEST(ProblemFlagsTest, NoFlagsMeanFullAttention) {
  const ProblemOptions options = ParseOrDie({});
  EXPECT_EQ(options.layout, Layout::kBHND);
  EXPECT_EQ(options.window_left, -1);
  EXPECT_EQ(options.window_right, -1);
  EXPECT_EQ(options.alignment, Alignment::kTopLeft);
  EXPECT_EQ(options.scale, std::nullopt);
  EXPECT_EQ(options.probes, 0);
  EXPECT_FALSE(options.allow_tf32);
  EXPECT_FALSE(options.deterministic);
}

TEST(ProblemFlagsTest, EveryFlagArrives) {
  const ProblemOptions options = ParseOrDie({"--layout", "THD", "--window", "7,-1", "--align", "bottom-right",
                                             "--scale", "-0.5", "--probes", "3", "--tf32", "--deterministic"});
  EXPECT_EQ(options.layout, Layout::kTHD);
  EXPECT_EQ(options.window_left, 7);
  EXPECT_EQ(options.window_right, -1);
  EXPECT_EQ(options.alignment, Alignment::kBottomRight);
  EXPECT_EQ(options.scale, -0.5);
  EXPECT_EQ(options.probes, 3);
  EXPECT_TRUE(options.allow_tf32);
  EXPECT_TRUE(options.deterministic);
}

TEST(ProblemFlagsTest, WindowMayBeginWithAMinus) {
  EXPECT_EQ(ParseOrDie({"--window", "-1,4"}).window_right, 4);
  EXPECT_EQ(ParseOrDie({"--window=-1,4"}).window_right, 4);
}

TEST(ProblemFlagsTest, CausalSetsTheRightSideAndTheCornerAndKeepsTheLeftSide) {
  const ProblemOptions options = ParseOrDie({"--causal", "bottom-right", "--window", "5,9"});
  EXPECT_EQ(options.window_left, 5);
  EXPECT_EQ(options.window_right, 0);
  EXPECT_EQ(options.alignment, Alignment::kBottomRight);
  EXPECT_EQ(ParseOrDie({"--causal", "top-left"}).alignment, Alignment::kTopLeft);
  EXPECT_EQ(ParseOrDie({"--causal", "top-left", "--align", "top-left"}).window_right, 0);
}

TEST(ProblemFlagsTest, AlignThatContradictsCausalIsAnError) {
  const absl::Status status = Parse({"--causal", "bottom-right", "--align", "top-left"}).status();
  EXPECT_EQ(status, absl::InvalidArgumentError("--align top-left contradicts --causal bottom-right"));
  EXPECT_FALSE(Parse({"--causal", "top-left", "--align", "bottom-right"}).ok());
}

TEST(ProblemFlagsTest, WhatMakesNoSenseIsRefused) {
  const std::vector<std::vector<std::string>> cases = {
      {"--layout", "HBND"},  {"--layout", "bhnd"}, {"--causal", "left"},  {"--causal"},
      {"--align", "middle"}, {"--window", "3"},    {"--window", "3,"},    {"--window", ",3"},
      {"--window", "1,2,3"}, {"--window", "-2,0"}, {"--window", "1.5,0"}, {"--window", "99999999999999999999,0"},
      {"--scale", "nan"},    {"--scale", "inf"},   {"--scale", "x"},      {"--probes", "-1"},
      {"--probes", "1.5"},   {"--probes", "9e99"}, {"--unknown", "1"},
  };
  for (const std::vector<std::string>& arguments : cases) {
    EXPECT_EQ(Parse(arguments).status().code(), absl::StatusCode::kInvalidArgument)
        << arguments.front() << " " << arguments.back();
  }
}

}  // namespace
}  // namespace flashbob::cli
