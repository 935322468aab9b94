// Attention of tensors that lie on a server, outputs kept there, too: what the service adds where no tensor travels.
// Puts random inputs, then sends requests in closed loop; prints one JSON object.
//
//   stored_benchmark --server 127.0.0.1:50051 --shape 1,16,16384,128 --in-flight 2 --seconds 5
//
// bf16. Beside it, in the same run, the median of a Compute stream that is closed unused: the least that a call costs.
// With one in flight the two take turns, so that a machine that is quicker now than then is so for both.
#include <grpcpp/create_channel.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstring>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>
#include <vector>

#include "flashbob/v1/attention_service.grpc.pb.h"

namespace flashbob {
namespace {

using Stub = v1::AttentionService::Stub;
using std::chrono::steady_clock;

struct Tensors {
  v1::Operation operation;
  std::vector<v1::TensorName> inputs;
  std::vector<v1::TensorName> outputs;
};

Tensors TensorsOf(const std::string& operation) {
  if (operation == "forward") {
    return {v1::OPERATION_FORWARD,
            {v1::TENSOR_NAME_Q, v1::TENSOR_NAME_K, v1::TENSOR_NAME_V},
            {v1::TENSOR_NAME_O, v1::TENSOR_NAME_LSE}};
  }
  return {v1::OPERATION_DOUBLE_BACKWARD,
          {v1::TENSOR_NAME_Q, v1::TENSOR_NAME_K, v1::TENSOR_NAME_V, v1::TENSOR_NAME_DO, v1::TENSOR_NAME_UQ,
           v1::TENSOR_NAME_UK, v1::TENSOR_NAME_UV},
          {v1::TENSOR_NAME_GQ, v1::TENSOR_NAME_GK, v1::TENSOR_NAME_GV, v1::TENSOR_NAME_GDO}};
}

double Milliseconds(steady_clock::duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

void Describe(v1::TensorName name, const std::vector<int64_t>& shape, v1::TensorSpec& spec) {
  spec.set_name(name);
  spec.set_dtype(v1::DATA_TYPE_BF16);
  for (int64_t extent : shape) spec.add_shape(extent);
}

// Handles of normal inputs; empty where the server refuses them.
std::vector<std::string> PutInputs(Stub& stub, const std::vector<v1::TensorName>& inputs,
                                   const std::vector<int64_t>& shape) {
  grpc::ClientContext context;
  v1::PutTensorsResponse response;
  const auto writer = stub.PutTensors(&context, &response);
  v1::PutTensorsRequest request;
  int64_t bytes = 2;
  for (int64_t extent : shape) bytes *= extent;
  for (v1::TensorName name : inputs) Describe(name, shape, *request.mutable_spec()->add_tensors());
  bool taken = writer->Write(request);
  std::mt19937 random{std::random_device()()};
  std::normal_distribution<float> normal;
  constexpr int64_t kPiece = 1 << 20;
  for (uint32_t i = 0; i < inputs.size(); ++i) {
    std::string piece(static_cast<size_t>(std::min(kPiece, bytes)), '\0');
    for (size_t at = 0; at < piece.size(); at += 2) {
      uint32_t bits = 0;
      const float value = normal(random);
      std::memcpy(&bits, &value, sizeof(bits));
      piece[at] = static_cast<char>(bits >> 16);  // the upper half is a bf16
      piece[at + 1] = static_cast<char>(bits >> 24);
    }
    for (int64_t offset = 0; taken && offset < bytes; offset += kPiece) {
      request.mutable_chunk()->set_tensor_index(i);
      request.mutable_chunk()->set_byte_offset(offset);
      request.mutable_chunk()->set_data(piece.data(), static_cast<size_t>(std::min(kPiece, bytes - offset)));
      taken = writer->Write(request);
    }
  }
  writer->WritesDone();
  const grpc::Status status = writer->Finish();
  if (!status.ok()) std::cerr << "PutTensors: " << status.error_message() << "\n";
  return {response.handles().begin(), response.handles().end()};
}

// One request; its outputs' handles go to `kept`.
grpc::Status Compute(Stub& stub, const v1::ComputeRequest& request, v1::DeleteTensorsRequest& kept,
                     v1::Timings& timings) {
  grpc::ClientContext context;
  context.set_initial_metadata_corked(true);
  const auto stream = stub.Compute(&context);
  stream->WriteLast(request, {});
  v1::ComputeResponse response;
  while (stream->Read(&response)) {
    if (!response.has_result()) continue;
    timings = response.result().timings();
    for (const v1::ResultTensor& tensor : response.result().tensors()) kept.add_handles(tensor.handle());
  }
  return stream->Finish();
}

struct Samples {
  std::vector<double> milliseconds;
  double queue_ms = 0;
  double compute_ms = 0;
  grpc::Status status;
};

double InMilliseconds(const google::protobuf::Duration& duration) {
  return static_cast<double>(duration.seconds()) * 1e3 + duration.nanos() * 1e-6;
}

Samples RunLoop(Stub& stub, const v1::ComputeRequest& request, steady_clock::time_point end) {
  Samples samples;
  for (bool first = true; first || steady_clock::now() < end; first = false) {
    v1::DeleteTensorsRequest kept;
    v1::Timings timings;
    const auto began = steady_clock::now();
    samples.status = Compute(stub, request, kept, timings);
    if (!samples.status.ok()) return samples;
    samples.milliseconds.push_back(Milliseconds(steady_clock::now() - began));
    samples.queue_ms += InMilliseconds(timings.queue());
    samples.compute_ms += InMilliseconds(timings.compute());
    grpc::ClientContext context;
    v1::DeleteTensorsResponse deleted;
    samples.status = stub.DeleteTensors(&context, kept, &deleted);
    if (!samples.status.ok()) return samples;
  }
  return samples;
}

void AddEmptyCalls(Stub& stub, int count, std::vector<double>& milliseconds) {
  for (int i = 0; i < count; ++i) {
    grpc::ClientContext context;
    const auto began = steady_clock::now();
    const auto stream = stub.Compute(&context);
    stream->WritesDone();
    stream->Finish();
    milliseconds.push_back(Milliseconds(steady_clock::now() - began));
  }
}

int Main(int argc, char** argv) {
  CLI::App app("Attention of tensors that lie on a server", "stored_benchmark");
  std::string server = "127.0.0.1:50051";
  std::vector<int64_t> shape = {1, 16, 4096, 64};
  std::string operation = "double_backward";
  int in_flight = 1;
  double seconds = 3;
  app.add_option("--server", server, "HOST:PORT");
  app.add_option("--shape", shape, "B,H,N,D")->delimiter(',')->expected(4);
  app.add_option("--op", operation, "What is computed")->check(CLI::IsMember({"forward", "double_backward"}));
  app.add_option("--in-flight", in_flight, "Requests at a time")->check(CLI::Range(1, 64));
  app.add_option("--seconds", seconds, "How long to measure");
  CLI11_PARSE(app, argc, argv);

  const auto stub = v1::AttentionService::NewStub(grpc::CreateChannel(server, grpc::InsecureChannelCredentials()));
  const Tensors tensors = TensorsOf(operation);
  const std::vector<std::string> handles = PutInputs(*stub, tensors.inputs, shape);
  if (handles.size() != tensors.inputs.size()) return 1;
  v1::ComputeRequest request;
  v1::ComputeSpec& spec = *request.mutable_spec();
  spec.set_operation(tensors.operation);
  spec.set_brief_answer(true);
  spec.mutable_problem()->set_layout(v1::LAYOUT_BHND);
  for (size_t i = 0; i < handles.size(); ++i) {
    v1::InputTensor& input = *spec.add_inputs();
    Describe(tensors.inputs[i], shape, *input.mutable_tensor());
    input.set_handle(handles[i]);
  }
  for (v1::TensorName name : tensors.outputs) {
    v1::OutputTensor& output = *spec.add_outputs();
    output.set_name(name);
    output.mutable_keep();
  }

  Samples total;
  double elapsed = 0;
  const auto run = [&](double duration) {
    std::vector<Samples> all(static_cast<size_t>(in_flight));
    std::vector<std::thread> threads;
    const auto began = steady_clock::now();
    const auto end =
        began + std::chrono::duration_cast<steady_clock::duration>(std::chrono::duration<double>(duration));
    for (Samples& samples : all) threads.emplace_back([&] { samples = RunLoop(*stub, request, end); });
    for (std::thread& thread : threads) thread.join();
    elapsed += Milliseconds(steady_clock::now() - began) / 1e3;
    for (const Samples& samples : all) {
      if (total.status.ok()) total.status = samples.status;
      total.milliseconds.insert(total.milliseconds.end(), samples.milliseconds.begin(), samples.milliseconds.end());
      total.queue_ms += samples.queue_ms;
      total.compute_ms += samples.compute_ms;
    }
  };
  run(0.2);  // warms kernels and memory up
  total = {};
  elapsed = 0;
  std::vector<double> empty_calls;
  const int turns = in_flight == 1 ? 10 : 1;
  for (int turn = 0; turn < turns && total.status.ok(); ++turn) {
    run(seconds / turns);
    AddEmptyCalls(*stub, 500 / turns, empty_calls);
  }
  if (!total.status.ok()) return std::cerr << total.status.error_message() << "\n", 1;
  const auto requests = static_cast<double>(total.milliseconds.size());
  const double p50 = Median(total.milliseconds);
  const double empty = Median(empty_calls);
  std::cout << nlohmann::json{{"operation", operation},
                              {"shape", shape},
                              {"in_flight", in_flight},
                              {"requests", total.milliseconds.size()},
                              {"seconds", elapsed},
                              {"requests_per_second", requests / elapsed},
                              {"p50_ms", p50},
                              {"p50_over_empty_call_ms", p50 - empty},
                              {"queue_ms", total.queue_ms / requests},
                              {"compute_ms", total.compute_ms / requests},
                              {"empty_call_p50_ms", empty}}
                   .dump()
            << "\n";
  return 0;
}

}  // namespace
}  // namespace flashbob

int main(int argc, char** argv) { return flashbob::Main(argc, argv); }
