// A clock that jumps, as when the machine was suspended, or the process stopped, for an hour: what is overdue ends with
// its reason, all else goes on, and the server has learned nothing wrong.
#include <gtest/gtest.h>

#include <optional>
#include <thread>

#include "tests/server/testing/step_clock.h"
#include "tests/server/testing/test_server.h"

namespace flashbob::server {
namespace {

constexpr auto kJump = std::chrono::hours(1);

v1::ComputeSpec Spec() { return ForwardSpec(1, 64, 8); }

class ClockJumpTest : public testing::Test {
 protected:
  // One that runs, held in its first slice.
  std::unique_ptr<ComputeStream> StartRunning(std::optional<std::chrono::milliseconds> deadline = std::nullopt) {
    server_.engine().Hold();
    const int64_t launches = server_.engine().launches();
    auto stream = deadline.has_value() ? std::make_unique<ComputeStream>(*stub_, *deadline)
                                       : std::make_unique<ComputeStream>(*stub_);
    stream->Send(Spec());
    stream->SendInputs(Spec());
    stream->CloseSending();
    server_.engine().WaitForLaunches(launches + 1);
    return stream;
  }

  StepClock clock_;
  TestServer server_{{.slices = 4}, TestServer::DefaultOptions(), clock_};
  const std::unique_ptr<v1::AttentionService::Stub> stub_ = server_.Connect();
};

TEST_F(ClockJumpTest, WhatIsOverdueEndsWithItsReasonAndTheRestGoesOn) {
  ComputeStream uploading(*stub_);
  uploading.Send(Spec());
  ASSERT_TRUE(uploading.Receive().has_value());
  const auto patient = StartRunning();
  const auto urgent = std::make_unique<ComputeStream>(*stub_, std::chrono::minutes(10));
  urgent->Send(Spec());
  urgent->SendInputs(Spec());
  while (server_.server().scheduler().CountByState()[static_cast<size_t>(RequestState::kReady)] +
             server_.server().scheduler().CountByState()[static_cast<size_t>(RequestState::kRunning)] <
         2) {
    std::this_thread::yield();
  }
  clock_.Step(kJump);

  const WireError idle = Decode(uploading.Finish());
  EXPECT_EQ(idle.code, grpc::StatusCode::DEADLINE_EXCEEDED) << idle.text;
  EXPECT_EQ(idle.reason, "DEADLINE") << idle.text;
  EXPECT_NE(idle.text.find("0 of 6144 input bytes had come, then nothing for 30 s"), std::string::npos) << idle.text;
  server_.engine().LetGo();
  const WireError late = Decode(urgent->Finish());
  EXPECT_EQ(late.code, grpc::StatusCode::DEADLINE_EXCEEDED) << late.text;
  EXPECT_EQ(late.reason, "DEADLINE") << late.text;
  EXPECT_NE(late.text.find("3600."), std::string::npos) << late.text;
  EXPECT_TRUE(ReceiveAll(*patient).status.ok()) << "nobody set it a deadline";
  EXPECT_TRUE(server_.CleanAndServing());
}

TEST_F(ClockJumpTest, LeasesThatRanOutAnswerNotFound) {
  v1::ComputeSpec spec = Spec();
  v1::OutputTensor& output = *spec.add_outputs();
  output.set_name(v1::TENSOR_NAME_O);
  output.mutable_keep()->set_lease_seconds(60);
  const Computed kept = Compute(*stub_, spec);
  ASSERT_TRUE(kept.status.ok()) << kept.status.error_message();
  v1::ComputeSpec uses = Spec();
  uses.mutable_inputs(0)->set_handle(kept.result->tensors(0).handle());
  clock_.Step(kJump);
  const WireError gone = Decode(Compute(*stub_, uses).status);
  EXPECT_EQ(gone.code, grpc::StatusCode::NOT_FOUND) << gone.text;
  EXPECT_EQ(gone.reason, "HANDLE") << gone.text;
  EXPECT_TRUE(server_.CleanAndServing());
}

// The slice seems to have taken an hour. Were that believed, whoever sets a deadline would be refused from then on, and
// what is refused never teaches better.
TEST_F(ClockJumpTest, JumpWithinASliceDoesNotMakeTheServerRefuseDeadlines) {
  for (int round = 0; round < 3; ++round) {
    const auto running = StartRunning();
    clock_.Step(kJump);
    server_.engine().LetGo();
    ASSERT_TRUE(ReceiveAll(*running).status.ok());
    ComputeStream urgent(*stub_, std::chrono::seconds(30));
    urgent.Send(Spec());
    urgent.SendInputs(Spec());
    urgent.CloseSending();
    const Computed computed = ReceiveAll(urgent);
    EXPECT_TRUE(computed.status.ok()) << computed.status.error_message();
  }
}

TEST_F(ClockJumpTest, ClockThatGoesBackEndsNothing) {
  ComputeStream uploading(*stub_, std::chrono::minutes(10));
  uploading.Send(Spec());
  ASSERT_TRUE(uploading.Receive().has_value());
  const auto running = StartRunning(std::chrono::minutes(10));
  clock_.Step(-std::chrono::minutes(50));
  server_.engine().LetGo();
  EXPECT_TRUE(ReceiveAll(*running).status.ok());
  EXPECT_TRUE(uploading.SendInputs(Spec()));
  uploading.CloseSending();
  EXPECT_TRUE(ReceiveAll(uploading).status.ok());
  EXPECT_TRUE(server_.CleanAndServing());
}

}  // namespace
}  // namespace flashbob::server
