// Visitor: one client of the soak, which does this and that until it is told to stop: computes and compares, cancels,
// sets deadlines that cannot be met, reads and writes slowly, keeps tensors, loses its connection, sends nonsense.
//
// Thread safety: Run on one thread; the rest from any.
#ifndef FLASHBOB_TESTS_SOAK_VISITOR_H_
#define FLASHBOB_TESTS_SOAK_VISITOR_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>

#include "flashbob/client.h"
#include "flashbob/v1/attention_service.grpc.pb.h"
#include "tests/soak/catalogue.h"
#include "tests/soak/tally.h"

namespace flashbob::soak {

// What all visitors share; outlives them.
struct Surroundings {
  const Catalogue& catalogue;
  Tally& tally;
  const std::atomic<bool>& stopping;
  int port = 0;
};

class Visitor {
 public:
  Visitor(const Surroundings& around, std::string token, uint64_t seed);

  void Run();

  // What it is at, and for how long.
  const char* action() const { return action_; }
  std::chrono::duration<double> at_it() const;

 private:
  struct Action {
    const char* name;
    int share;
    void (Visitor::*act)();
  };
  static const Action kActions[];

  void ComputeAndCompare();
  void Cancel();
  void HurryTooMuch();
  void Dawdle();
  void KeepTensors();
  void LeaveTensors();
  void LoseTheConnection();
  void SendNonsense();
  void Ask();
  void LeaveInTheMiddle();

  void Connect();
  // Counts how a call ended, and compares what it gave; `allowed`: codes that it may end with besides OK and refusals
  // for what is full now.
  bool Judge(const Entry& entry, const absl::StatusOr<client::Result>& result,
             std::initializer_list<absl::StatusCode> allowed = {});
  bool Judge(const absl::Status& status, std::initializer_list<absl::StatusCode> allowed = {});

  const Surroundings around_;
  const std::string token_;
  std::mt19937_64 random_;
  std::optional<client::Client> client_;
  std::unique_ptr<v1::AttentionService::Stub> stub_;
  std::atomic<const char*> action_ = "starting";
  std::atomic<std::chrono::steady_clock::time_point> since_ = std::chrono::steady_clock::now();
};

}  // namespace flashbob::soak

#endif  // FLASHBOB_TESTS_SOAK_VISITOR_H_
