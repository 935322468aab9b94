#include "server/scheduler/hang_watch.h"

#include <gtest/gtest.h>

#include <optional>

namespace flashbob::server {
namespace {

TEST(HangWatchTest, WorkThatDoesNotEndIsFoundOnce) {
  HangWatch watch(3);
  const HangWatch::Work work(watch);
  EXPECT_FALSE(watch.Look());
  EXPECT_FALSE(watch.Look());
  EXPECT_TRUE(watch.Look());
  EXPECT_FALSE(watch.Look());
}

TEST(HangWatchTest, WorkThatGoesOnIsNotTakenForWorkThatHangs) {
  HangWatch watch(3);
  for (int i = 0; i < 20; ++i) {
    const HangWatch::Work work(watch);
    EXPECT_FALSE(watch.Look());
    EXPECT_FALSE(watch.Look());
  }
  EXPECT_FALSE(watch.Look());
}

TEST(HangWatchTest, OneThatHangsIsFoundBesideOthersThatDoNot) {
  HangWatch watch(3);
  std::optional<HangWatch::Work> quick(std::in_place, watch);
  const HangWatch::Work hangs(watch);
  EXPECT_FALSE(watch.Look());
  quick.emplace(watch);
  EXPECT_FALSE(watch.Look());
  quick.reset();
  EXPECT_TRUE(watch.Look());
}

}  // namespace
}  // namespace flashbob::server
