// FakeService: an AttentionService whose answers a test scripts, behind a real gRPC server on a free loopback port.
//
// Each call of Compute runs the next step of the script, the last one again and again. Thread safety: Calls and Specs
// from any thread; the script is set before the first call.
#ifndef FLASHBOB_TESTS_CLIENT_FAKE_SERVICE_H_
#define FLASHBOB_TESTS_CLIENT_FAKE_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "flashbob/v1/attention_service.grpc.pb.h"
#include "kernels/base/mutex.h"

namespace flashbob::client {

using ServerStream = grpc::ServerReaderWriter<v1::ComputeResponse, v1::ComputeRequest>;

class FakeService : public v1::AttentionService::Service {
 public:
  // Gets the spec, already read and recorded, and does the rest.
  using Step = std::function<grpc::Status(grpc::ServerContext&, const v1::ComputeSpec&, ServerStream&)>;

  explicit FakeService(std::vector<Step> script);
  ~FakeService() override;

  std::string address() const;
  int Calls() const;
  std::vector<v1::ComputeSpec> Specs() const;

  v1::GetServerInfoResponse info;  // what GetServerInfo answers

  grpc::Status Compute(grpc::ServerContext* context, ServerStream* stream) override;
  grpc::Status GetServerInfo(grpc::ServerContext* context, const v1::GetServerInfoRequest* request,
                             v1::GetServerInfoResponse* response) override;

 private:
  const std::vector<Step> script_;
  mutable Mutex mutex_;
  std::vector<v1::ComputeSpec> specs_ FLASHBOB_GUARDED_BY(mutex_);
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

// An error as the contract has it: with an ErrorInfo, and a RetryInfo where a delay is given.
grpc::Status ErrorWithDetails(grpc::StatusCode code, const std::string& text, const std::string& reason,
                              std::optional<int64_t> retry_milliseconds = std::nullopt);

// The bytes of each input, after reading to the end of the client's side; nothing where a chunk is out of order.
std::optional<std::vector<std::string>> ReadInputs(const v1::ComputeSpec& spec, ServerStream& stream);

v1::ComputeResponse Accepted(const v1::ComputeSpec& spec);
v1::ComputeResponse ProgressOf(double done, double total);
// A result with one fp32 tensor.
v1::ComputeResponse ResultOf(v1::TensorName name, const std::vector<int64_t>& shape);
v1::ComputeResponse ChunkOf(uint32_t index, int64_t offset, const std::string& data);

// Answers with one output that has the shape and the bytes of the spec's first input.
FakeService::Step Echo(v1::TensorName name);
// Reads nothing more and answers with this.
FakeService::Step FailWith(const grpc::Status& status);
// Reads all inputs, sends these messages, and ends with OK.
FakeService::Step AnswerWith(const std::vector<v1::ComputeResponse>& messages);

// Something that one thread opens and others wait for.
class Gate {
 public:
  void Open();
  void Wait();

 private:
  Mutex mutex_;
  CondVar changed_;
  bool open_ FLASHBOB_GUARDED_BY(mutex_) = false;
};

// Accepts, reads all inputs and says no more until the gate opens; then ends with what it then finds: CANCELLED where
// the client is gone.
FakeService::Step HoldUntil(Gate& gate);

}  // namespace flashbob::client

#endif  // FLASHBOB_TESTS_CLIENT_FAKE_SERVICE_H_
