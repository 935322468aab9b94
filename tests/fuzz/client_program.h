// ClientProgram: what one client of a tenant does, at random, and what it may expect of the server.
//
// Each Step is one call, or a call and its retry. Broken promises are failures of the running test. One thread a
// program; Statistics and SharedHandles are shared by all.
#ifndef FLASHBOB_TESTS_FUZZ_CLIENT_PROGRAM_H_
#define FLASHBOB_TESTS_FUZZ_CLIENT_PROGRAM_H_

#include <grpcpp/generic/generic_stub.h>

#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "flashbob/v1/attention_service.pb.h"
#include "kernels/base/mutex.h"
#include "kernels/cpu/cpu_engine.h"
#include "tests/fuzz/random_spec.h"
#include "tests/fuzz/raw_call.h"

namespace flashbob::fuzz {

// How many calls ended how: "Compute OK", "GetTensors HANDLE".
class Statistics {
 public:
  void Add(const std::string& outcome);
  int64_t Count(const std::string& outcome) const;
  std::string ToString() const;

 private:
  mutable Mutex mutex_;
  std::map<std::string, int64_t> counts_ FLASHBOB_GUARDED_BY(mutex_);
};

// Handles that were given to tenants, for others to try.
class SharedHandles {
 public:
  void Add(const std::string& tenant, const std::string& handle);
  std::optional<std::string> OfAnother(const std::string& tenant, std::mt19937_64& random) const;
  void Clear();

 private:
  mutable Mutex mutex_;
  std::multimap<std::string, std::string> handles_ FLASHBOB_GUARDED_BY(mutex_);  // by tenant
};

// What the server says of a tenant; nothing where the call fails.
v1::TenantInfo InfoOf(int port, const std::string& token);

class ClientProgram {
 public:
  // `tenant` is also its token.
  ClientProgram(int port, std::string tenant, const cpu::CpuEngineOptions& engine, uint64_t seed,
                SharedHandles& handles, Statistics& statistics);

  void Step();

 private:
  struct Kept {
    v1::TensorSpec tensor;
    std::string bytes;
  };
  struct Group {  // inputs of a problem that were stored together
    RandomProblem problem;
    std::vector<std::string> handles;
  };
  // How an upload goes on and ends.
  enum class Ending : uint8_t { kClose, kStayOpen, kCloseEarly, kCancelEarly, kCancelLate, kDrop, kShortDeadline };
  struct Upload {
    std::vector<std::string> messages;
    Ending ending = Ending::kClose;
    bool right = true;  // it must succeed
  };
  struct Answer {
    grpc::Status status;
    std::vector<std::string> messages;
  };

  void Compute();
  void Put();
  void Get();
  void Delete();
  void Ask();

  // The messages of a stream, and perhaps what is wrong with it.
  template <typename Request, typename Spec>
  Upload MakeUpload(const Spec& spec, const std::vector<std::string>& inputs);
  template <typename Request>
  void Sabotage(std::vector<std::string>& messages);
  Answer Send(const std::string& method, const Upload& upload);
  Answer SendOne(const std::string& method, const std::string& message);
  // Whether the call succeeded; fails the test where it ended as it must not.
  bool Judge(const std::string& method, const Upload& upload, const grpc::Status& status);
  void CheckOutputs(const RandomProblem& problem, const std::vector<std::string>& messages);
  void Keep(const std::string& handle, const v1::TensorSpec& tensor, const std::string& bytes);
  std::string BadHandle();
  std::string AnyKept();
  bool OneIn(uint64_t n) { return random_() % n == 0; }
  std::string Where() const;

  const std::string tenant_;
  const uint64_t seed_;
  std::mt19937_64 random_;
  SharedHandles& shared_;
  Statistics& statistics_;
  const std::unique_ptr<Engine> engine_;
  grpc::GenericStub stub_;
  int64_t steps_ = 0;
  std::map<std::string, Kept> kept_;  // by handle
  std::vector<Group> groups_;
  std::vector<std::string> deleted_;  // handles
};

}  // namespace flashbob::fuzz

#endif  // FLASHBOB_TESTS_FUZZ_CLIENT_PROGRAM_H_
