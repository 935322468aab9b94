// Drives a server from a test: specs, one Compute stream by hand, errors taken apart.
#ifndef FLASHBOB_TESTS_SERVER_TESTING_COMPUTE_CLIENT_H_
#define FLASHBOB_TESTS_SERVER_TESTING_COMPUTE_CLIENT_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "flashbob/v1/attention_service.grpc.pb.h"

namespace flashbob::server {

// A channel of its own to a server, at 127.0.0.1 where only a port is given. With `small_window`, flow control lets at
// most 64 KiB come unread.
std::shared_ptr<grpc::Channel> ConnectTo(const std::string& address, bool small_window = false);
std::shared_ptr<grpc::Channel> ConnectTo(int port, bool small_window = false);

// FORWARD, fp32, BHND, q, k and v of [1, heads, length, dim], all inline; all outputs, inline.
v1::ComputeSpec ForwardSpec(int64_t heads, int64_t length, int64_t dim);

// Bytes of one of the spec's inputs, as its shape says.
int64_t BytesOf(const v1::InputTensor& input);

// An error as stock helpers see it.
struct WireError {
  grpc::StatusCode code = grpc::StatusCode::OK;
  std::string text;
  std::string reason;                   // of the ErrorInfo in the details; empty where there is none
  std::string domain;                   // the same
  std::optional<double> retry_seconds;  // of the RetryInfo
};
WireError Decode(const grpc::Status& status);

// One Compute stream. Not thread safe, but for Cancel.
class ComputeStream {
 public:
  explicit ComputeStream(v1::AttentionService::Stub& stub);
  // As the tenant whose token this is.
  ComputeStream(v1::AttentionService::Stub& stub, const std::string& token);
  // With a deadline so far from now.
  ComputeStream(v1::AttentionService::Stub& stub, std::chrono::milliseconds deadline);
  ~ComputeStream();

  // False where the stream is broken; Finish says why.
  bool Send(const v1::ComputeSpec& spec);
  bool Send(uint32_t tensor, int64_t offset, const std::string& data);
  // The same as the last message, with which the sending side closes.
  void SendLast(uint32_t tensor, int64_t offset, const std::string& data);
  // Sends every inline input: byte i of input t is PatternByte(t, i).
  bool SendInputs(const v1::ComputeSpec& spec, int64_t chunk_bytes = 1 << 20);
  bool SendRaw(const v1::ComputeRequest& request);
  void CloseSending();
  // The next message; nothing at the end of the stream.
  std::optional<v1::ComputeResponse> Receive();
  // Reads what is left and returns the status.
  grpc::Status Finish();
  void Cancel() { context_->TryCancel(); }

  static char PatternByte(size_t tensor, int64_t i) { return static_cast<char>(i * 31 + (i >> 8) + 7 * tensor); }

 private:
  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::ComputeRequest, v1::ComputeResponse>> stream_;
  bool closed_ = false;
  bool finished_ = false;
};

// A whole request: what came back.
struct Computed {
  grpc::Status status;
  std::optional<v1::ComputeAccepted> accepted;
  std::vector<v1::ComputeProgress> progress;
  std::optional<v1::ComputeResult> result;
  std::vector<std::string> outputs;  // bytes of each result tensor
  int64_t largest_chunk_bytes = 0;
};
Computed Compute(v1::AttentionService::Stub& stub, const v1::ComputeSpec& spec, int64_t chunk_bytes = 1 << 20);
// The answers to a stream to which everything has been sent.
Computed ReceiveAll(ComputeStream& stream);

}  // namespace flashbob::server

#endif  // FLASHBOB_TESTS_SERVER_TESTING_COMPUTE_CLIENT_H_
