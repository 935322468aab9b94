// Fuzzes what the service makes of a stream's messages, Compute's or PutTensors', without a network: bytes to message,
// message to spec, chunks to memory.
//
// Promises: an error has its reason, its code and a printable text, and survives the way to the client. A spec that is
// taken agrees with the problem that it was turned into, in every count, and no sum of its bytes overflows. A chunk
// that is taken lies where it belongs; one that is refused changes nothing; the upload is complete exactly when every
// byte is there.
#include <google/protobuf/stubs/logging.h>
#include <grpcpp/support/slice.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "flashbob/v1/error_details.pb.h"
#include "kernels/base/status_macros.h"
#include "server/memory/host_memory_pool.h"
#include "server/scheduler/cost_model.h"
#include "server/service/grpc_status.h"
#include "server/service/messages.h"
#include "server/service/spec.h"
#include "server/service/upload.h"
#include "tests/fuzz/check.h"
#include "tests/fuzz/exchange.pb.h"
#include "tests/fuzz/message_mutator.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace flashbob::fuzz {
namespace {

using server::Upload;

// Small, so that inputs pass it.
constexpr int64_t kMaxChunkBytes = 64;
// Larger uploads are only planned.
constexpr int64_t kMaxUploadBytes = 64 << 10;

__int128 Product(const Shape& shape, DType dtype) {
  auto bytes = static_cast<__int128>(SizeOf(dtype));
  for (int64_t extent : shape) bytes = extent == 0 ? 0 : bytes * extent;
  return bytes;
}

void CheckError(const absl::Status& status) {
  const std::string text(status.message());
  const std::string reason = server::ReasonOf(status);
  Check(text.size() >= 10 && IsPrintable(text), "an error has a printable text", text);
  const bool code_fits = (status.code() == absl::StatusCode::kInvalidArgument && reason.rfind("BAD_", 0) == 0) ||
                         (status.code() == absl::StatusCode::kUnimplemented && reason == "UNSUPPORTED_PROBLEM") ||
                         (status.code() == absl::StatusCode::kFailedPrecondition && reason == "TOO_LARGE");
  Check(code_fits, "an error has its reason and the code that belongs to it", status.ToString());
  Check(!server::RetryDelayOf(status).has_value(), "what is wrong for ever is not worth a retry");
  const grpc::Status sent = server::ToGrpcStatus(status);
  v1::StatusDetails details;
  Check(details.ParseFromString(sent.error_details()) && details.code() == sent.error_code() &&
            details.details_size() == 1,
        "the details of an error can be read");
}

// Pairs that are visible, counted one by one, where that is quick.
void CheckMask(const AttentionProblem& problem) {
  for (int64_t b = 0; b < std::min<int64_t>(problem.batch(), 3); ++b) {
    const BandMask mask = problem.mask(b);
    Check(mask.query_len >= 0 && mask.key_len >= 0, "lengths are not negative");
    const double pairs = mask.VisiblePairs();
    Check(pairs >= 0 && pairs <= static_cast<double>(mask.query_len) * static_cast<double>(mask.key_len),
          "no more pairs are visible than there are");
    if (mask.query_len > 12 || mask.key_len > 12) continue;
    int64_t counted = 0;
    for (int64_t i = 0; i < mask.query_len; ++i) {
      for (int64_t j = 0; j < mask.key_len; ++j) counted += mask.Visible(i, j) ? 1 : 0;
    }
    Check(static_cast<double>(counted) == pairs, "VisiblePairs counts the visible pairs");
  }
}

int64_t CheckTensors(const AttentionProblem& problem, TensorSet names) {
  __int128 total = 0;
  names.ForEach([&](TensorName name) {
    const __int128 bytes = Product(problem.ShapeOf(name), problem.DTypeOf(name));
    Check(problem.NumBytes(name) == bytes, "a tensor's bytes are the product of its shape");
    Check(server::HostMemoryPool::BlockBytes(problem.NumBytes(name)) >= bytes, "a tensor's block holds it");
    problem.StridesOf(name);
    total += server::HostMemoryPool::BlockBytes(problem.NumBytes(name));
  });
  Check(total <= INT64_MAX, "the blocks of a computation can be added up");
  return static_cast<int64_t>(total);
}

void CheckSpec(const v1::ComputeSpec& spec, const server::ParsedSpec& parsed) {
  const Computation& computation = parsed.computation;
  const AttentionProblem& problem = computation.problem();
  Check(
      parsed.inputs.size() == static_cast<size_t>(spec.inputs_size()) && parsed.handles.size() == parsed.inputs.size(),
      "every input of the spec is taken");
  TensorSet inputs;
  for (size_t i = 0; i < parsed.inputs.size(); ++i) {
    const v1::InputTensor& input = spec.inputs(static_cast<int>(i));
    Check(!inputs.Has(parsed.inputs[i]), "no input is taken twice");
    inputs.Add(parsed.inputs[i]);
    const v1::TensorSpec expected = server::ToProto(problem, parsed.inputs[i]);
    const v1::TensorSpec& given = input.tensor();
    Check(expected.name() == given.name() && expected.dtype() == given.dtype() &&
              std::equal(expected.shape().begin(), expected.shape().end(), given.shape().begin(), given.shape().end()),
          "an input has the shape and type that its problem gives it", expected.ShortDebugString());
    Check(input.handle() == parsed.handles[i], "an input keeps its handle");
  }
  Check(inputs == computation.inputs(), "the computation has the inputs of the spec");
  TensorSet outputs;
  for (TensorName name : parsed.outputs) outputs.Add(name);
  Check(outputs == computation.outputs() && parsed.keep.size() == parsed.outputs.size(),
        "the computation has the outputs of the spec");
  Check(spec.outputs_size() == 0 || static_cast<size_t>(spec.outputs_size()) == parsed.outputs.size(),
        "outputs come in the order of the spec");
  Check(problem.batch() <= server::kMaxHeads / problem.heads(), "there are at most max_heads heads");
  Check(std::isfinite(problem.scale()), "the scale is finite");
  Check(IsPrintable(problem.ToString()), "a problem can be logged", problem.ToString());
  CheckTensors(problem, computation.inputs() | computation.outputs());
  Check(computation.input_bytes() >= 0 && computation.output_bytes() >= 0, "sums of bytes do not overflow");
  CheckMask(problem);
  const double flops = computation.flops();
  Check(flops >= 0 && std::isfinite(flops), "the estimate of the work is a number", std::to_string(flops));
  Check(server::CostModel({1e12}).Estimate(0, computation, flops) >= server::Duration(0),
        "the estimate of the time is a time");
}

// An upload into memory of exactly the tensors' sizes, and what should be in it.
class UploadBench {
 public:
  UploadBench(const std::vector<TensorName>& names, const std::vector<int64_t>& bytes) {
    std::vector<server::TensorBytes> places;
    for (size_t i = 0; i < names.size(); ++i) {
      memory_.push_back(bytes[i] > 0 ? std::make_unique<std::byte[]>(static_cast<size_t>(bytes[i])) : nullptr);
      bytes_.push_back(bytes[i]);
      places.push_back({names[i], memory_.back().get(), bytes[i]});
    }
    expected_.resize(names.size());
    upload_ = std::make_unique<Upload>(std::move(places), kMaxChunkBytes);
    CheckCounts();
  }

  absl::Status Accept(const v1::TensorChunk& chunk) {
    const absl::Status taken = upload_->Accept(chunk);
    const size_t index = chunk.tensor_index();
    const bool fits = index < expected_.size() &&
                      chunk.byte_offset() == static_cast<int64_t>(expected_[index].size()) &&
                      static_cast<int64_t>(chunk.data().size()) <= kMaxChunkBytes &&
                      static_cast<int64_t>(expected_[index].size() + chunk.data().size()) <= bytes_[index] &&
                      (!chunk.data().empty() || bytes_[index] == 0);
    Check(taken.ok() == fits, "exactly the chunks that continue a tensor are taken", chunk.ShortDebugString());
    if (taken.ok()) expected_[index] += chunk.data();
    CheckCounts();
    return taken;
  }

  // No more chunks come.
  void End() {
    const absl::Status ended = upload_->Ended();
    Check(ended.ok() == upload_->complete(), "an upload may end exactly where it is complete");
    if (!ended.ok()) CheckError(ended);
    for (size_t i = 0; i < expected_.size(); ++i) {
      Check(std::equal(expected_[i].begin(), expected_[i].end(), reinterpret_cast<const char*>(memory_[i].get())),
            "the bytes that were taken are those that were sent");
    }
  }

 private:
  void CheckCounts() const {
    int64_t received = 0;
    int64_t total = 0;
    for (size_t i = 0; i < expected_.size(); ++i) {
      received += static_cast<int64_t>(expected_[i].size());
      total += bytes_[i];
    }
    Check(upload_->received_bytes() == received && upload_->total_bytes() == total, "an upload counts its bytes");
    Check(upload_->complete() == (received == total), "an upload is complete when every byte is there");
  }

  std::vector<std::unique_ptr<std::byte[]>> memory_;
  std::vector<int64_t> bytes_;
  std::vector<std::string> expected_;
  std::unique_ptr<Upload> upload_;
};

std::optional<UploadBench> BenchFor(const std::vector<TensorName>& names, const std::vector<int64_t>& bytes) {
  int64_t left = kMaxUploadBytes;
  for (int64_t each : bytes) {
    if (each > left) return std::nullopt;
    left -= each;
  }
  return std::make_optional<UploadBench>(names, bytes);
}

// Takes the spec; nothing where the upload is too large to be tried.
absl::StatusOr<std::optional<UploadBench>> TakeSpec(const v1::ComputeSpec& spec) {
  FLASHBOB_RETURN_IF_ERROR(server::CheckRequestId(spec.request_id()));
  Check(IsPrintable(spec.request_id()), "a request id that is taken can be logged", spec.request_id());
  FLASHBOB_RETURN_IF_ERROR(server::OperationOf(spec).status());
  FLASHBOB_ASSIGN_OR_RETURN(const server::ParsedSpec parsed, server::ParseSpec(spec));
  CheckSpec(spec, parsed);
  std::vector<int64_t> bytes;
  for (size_t i = 0; i < parsed.inputs.size(); ++i) {
    bytes.push_back(parsed.handles[i].empty() ? parsed.computation.problem().NumBytes(parsed.inputs[i]) : 0);
  }
  return BenchFor(parsed.inputs, bytes);
}

absl::StatusOr<std::optional<UploadBench>> TakeSpec(const v1::PutTensorsSpec& spec) {
  FLASHBOB_RETURN_IF_ERROR(server::CheckRequestId(spec.request_id()));
  FLASHBOB_ASSIGN_OR_RETURN(const std::vector<TensorInfo> infos, server::ParseTensors(spec));
  Check(infos.size() == static_cast<size_t>(spec.tensors_size()), "every tensor of the spec is taken");
  std::vector<TensorName> names;
  std::vector<int64_t> bytes;
  for (const TensorInfo& info : infos) {
    Check(std::find(names.begin(), names.end(), info.name) == names.end(), "no tensor is taken twice");
    names.push_back(info.name);
    bytes.push_back(server::BytesOf(info));
    Check(bytes.back() == Product(info.shape, info.dtype), "a tensor's bytes are the product of its shape");
  }
  return BenchFor(names, bytes);
}

// The stream as the service takes it: the first error ends it.
template <typename Request>
void Take(const Exchange& exchange) {
  bool has_spec = false;
  std::optional<UploadBench> upload;
  for (const std::string& bytes : exchange.messages()) {
    const grpc::Slice slice(bytes);
    grpc::ByteBuffer buffer(&slice, 1);
    Request message;
    const absl::Status read = server::ReadMessage(buffer, message);
    Check(buffer.Length() == 0, "a message that was read holds no memory");
    if (!read.ok()) return CheckError(read);
    switch (message.payload_case()) {
      case Request::kSpec: {
        if (has_spec) return;
        absl::StatusOr<std::optional<UploadBench>> taken = TakeSpec(message.spec());
        if (!taken.ok()) return CheckError(taken.status());
        has_spec = true;
        upload = *std::move(taken);
        if (!upload.has_value()) return;
        break;
      }
      case Request::kChunk: {
        if (!has_spec) return;
        const absl::Status taken = upload->Accept(message.chunk());
        if (taken.ok()) break;
        CheckError(taken);
        return upload->End();
      }
      default:
        return;
    }
  }
  if (upload.has_value()) upload->End();
}

// Appends the chunk that comes next in the order of the spec, or nearly so.
template <typename Request>
void AppendChunk(Exchange& exchange, Random& random) {
  const auto index = static_cast<uint32_t>(random() % 5);
  int64_t offset = 0;
  for (const std::string& bytes : exchange.messages()) {
    Request message;
    if (!message.ParseFromString(bytes) || !message.has_chunk()) continue;
    if (message.chunk().tensor_index() == index) offset += static_cast<int64_t>(message.chunk().data().size());
  }
  Request message;
  message.mutable_chunk()->set_tensor_index(index);
  message.mutable_chunk()->set_byte_offset(offset);
  message.mutable_chunk()->set_data(std::string(1 + random() % 70, static_cast<char>('a' + random() % 26)));
  exchange.add_messages(message.SerializeAsString());
}

template <typename Request>
void Mutate(Exchange& exchange, Random& random) {
  const int size = exchange.messages_size();
  const auto any = [&] { return static_cast<int>(random() % static_cast<unsigned>(size)); };
  const unsigned choice = random() % 16;
  if (size == 0 || choice < 3) return AppendChunk<Request>(exchange, random);
  if (choice == 3) return exchange.mutable_messages()->SwapElements(any(), any());
  if (choice == 4) return exchange.mutable_messages()->RemoveLast();
  if (choice == 5) {
    exchange.add_messages(exchange.messages(any()));
    return;
  }
  std::string& bytes = *exchange.mutable_messages(any());
  Request message;
  if (choice == 6 || !message.ParseFromString(bytes)) {
    const size_t length = bytes.size();
    bytes.resize(length + 16);
    bytes.resize(LLVMFuzzerMutate(reinterpret_cast<uint8_t*>(bytes.data()), length, bytes.size()));
    return;
  }
  MutateMessage(message, random);
  message.SerializeToString(&bytes);
}

}  // namespace
}  // namespace flashbob::fuzz

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  google::protobuf::SetLogHandler(nullptr);  // a line for each text that is no UTF-8
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  flashbob::fuzz::Exchange exchange;
  if (!exchange.ParseFromArray(data, static_cast<int>(size))) {
    exchange.Clear();
    exchange.add_messages(std::string(reinterpret_cast<const char*>(data), size));
  }
  if (exchange.put()) {
    flashbob::fuzz::Take<flashbob::v1::PutTensorsRequest>(exchange);
  } else {
    flashbob::fuzz::Take<flashbob::v1::ComputeRequest>(exchange);
  }
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
  flashbob::fuzz::Random random(seed);
  flashbob::fuzz::Exchange exchange;
  if (random() % 16 == 0 || !exchange.ParseFromArray(data, static_cast<int>(size))) {
    return LLVMFuzzerMutate(data, size, max_size);
  }
  if (random() % 64 == 0) exchange.set_put(!exchange.put());
  if (exchange.put()) {
    flashbob::fuzz::Mutate<flashbob::v1::PutTensorsRequest>(exchange, random);
  } else {
    flashbob::fuzz::Mutate<flashbob::v1::ComputeRequest>(exchange, random);
  }
  if (exchange.ByteSizeLong() > max_size) return size;
  exchange.SerializeToArray(data, static_cast<int>(max_size));
  return exchange.ByteSizeLong();
}
