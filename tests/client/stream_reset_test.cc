// Uploads, frame by frame: how they end, and what a stream costs that the server's transport resets by itself.
#include <gtest/gtest.h>

#include <vector>

#include "flashbob/client.h"
#include "tests/client/resetting_peer.h"

namespace flashbob::client {
namespace {

// The connection is made with the first call.
Client ConnectTo(const ResettingPeer& peer, int max_attempts) {
  return Client::Connect({.server = peer.address(),
                          .connect_timeout = std::chrono::seconds(0),
                          .default_timeout = std::chrono::seconds(30),
                          .retry = {.max_attempts = max_attempts, .initial_backoff = std::chrono::milliseconds(1)},
                          .chunk_bytes = 1000})
      .value();
}

TEST(StreamResetTest, ResetOfAnUploadCostsARetryAndNotTheUpload) {
  const ResettingPeer peer(2, "handle");
  const std::vector<float> values(1000, 1);
  const auto stored = ConnectTo(peer, 3).PutTensors({{"q", {values, {1, 1, 100, 10}}}});
  ASSERT_TRUE(stored.ok()) << stored.status();
  EXPECT_EQ((*stored)[0].handle, "handle");
  EXPECT_EQ(peer.streams(), 3);
}

TEST(StreamResetTest, ResetIsUnavailableAndNamesTheServerWhereNothingIsRetried) {
  const ResettingPeer peer(1, "handle");
  const std::vector<float> values(1000, 1);
  const absl::Status status = ConnectTo(peer, 1).PutTensors({{"q", {values, {1, 1, 100, 10}}}}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_EQ(std::string(status.message()), "server " + peer.address() + ": Received RST_STREAM with error code 1");
}

// A server whose windows have become smaller takes an end in a frame of its own for a byte too many.
TEST(StreamResetTest, EndOfAnUploadComesWithItsLastBytes) {
  const ResettingPeer peer(0, "handle");
  Client client = ConnectTo(peer, 1);
  for (const int64_t rows : {0, 1, 25, 100, 30000}) {
    const std::vector<float> values(static_cast<size_t>(rows) * 10, 1);
    const auto stored = client.PutTensors({{"q", {values, {1, 1, rows, 10}}}});
    EXPECT_TRUE(stored.ok()) << stored.status();
  }
  EXPECT_EQ(peer.streams(), 5);
  EXPECT_EQ(peer.empty_ends(), 0);
}

}  // namespace
}  // namespace flashbob::client
