// RawCall: one call to the service, of any method, whose messages are bytes: right ones, wrong ones, and in any number.
// Every step waits for its end. One thread.
#ifndef FLASHBOB_TESTS_FUZZ_RAW_CALL_H_
#define FLASHBOB_TESTS_FUZZ_RAW_CALL_H_

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>

namespace flashbob::fuzz {

class RawCall {
 public:
  // `method` as in "Compute". An empty token sends none.
  RawCall(grpc::GenericStub& stub, const std::string& method, const std::string& token,
          std::chrono::milliseconds deadline);
  // Cancels what has not ended.
  ~RawCall();
  RawCall(const RawCall&) = delete;
  RawCall& operator=(const RawCall&) = delete;

  // False where the call is over; Finish says why.
  bool Write(const std::string& message);
  bool HalfClose();
  // The next message; nothing where there is none any more.
  std::optional<std::string> Read();
  void Cancel() { context_.TryCancel(); }
  grpc::Status Finish();

 private:
  bool Done();

  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
  bool finished_ = false;
};

}  // namespace flashbob::fuzz

#endif  // FLASHBOB_TESTS_FUZZ_RAW_CALL_H_
