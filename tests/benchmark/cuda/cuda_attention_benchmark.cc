// Times every operation of the CUDA engine over a list of shapes, with device events, and prints one JSON object.
//
//   cuda_attention_benchmark [--dtype bf16|fp16|fp32|fp64] [--ops forward,backward,jvp,double_backward] [--reps N]
//                            [--deterministic] [--portable] [--tf32] [--tangents q,k,v] [--probes P] [--recompute]
//                            B,H,N,D[,c|,wL] ...
//
// H is heads or heads/kv_heads; c is causal, wL a causal window of L keys; --portable forbids the kernels for Hopper.
//
// `--tangents` names the cotangents or tangents that are given, `--probes` how many sets of them.
// Inputs are normal; o and lse are given to all operations but forward, from a forward of the same inputs, or, with
// `--recompute`, left out. A figure is
// the median of `reps` runs after warm-up; rates are on math.md's FLOP count.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "kernels/base/status_macros.h"
#include "kernels/convert.h"
#include "kernels/cuda/cuda_plan.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/device_traits.h"
#include "nlohmann/json.hpp"

namespace flashbob {
namespace {

using cuda::ToStatus;
using enum TensorName;

struct ShapeSpec {
  int64_t batch = 1;
  int64_t heads = 1;
  int64_t kv_heads = 1;
  int64_t length = 0;
  int64_t dim = 64;
  int64_t window = 0;  // keys, 0: none
  bool causal = false;
};

struct Options {
  DType dtype = DType::kBFloat16;
  std::vector<Operation> operations = {Operation::kForward, Operation::kBackward, Operation::kJvp,
                                       Operation::kDoubleBackward};
  int reps = 10;
  bool deterministic = false;
  bool tf32 = false;
  bool recompute = false;
  int64_t probes = 0;
  std::vector<std::string> tangents = {"q", "k", "v"};
  bool portable = false;
  double slice_seconds = 0.020;
  std::vector<ShapeSpec> shapes;
};

// Device memory of a scope.
class DeviceBuffer {
 public:
  static absl::StatusOr<DeviceBuffer> Create(size_t bytes) {
    DeviceBuffer buffer;
    FLASHBOB_RETURN_IF_ERROR(ToStatus(cudaMalloc(&buffer.data_, std::max<size_t>(bytes, 1)), "cudaMalloc"));
    return buffer;
  }
  DeviceBuffer() = default;
  DeviceBuffer(DeviceBuffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    return *this;
  }
  ~DeviceBuffer() { cudaFree(data_); }
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

// Normal numbers, over and over: the period divides no row length.
absl::Status FillNormal(void* device, size_t bytes, DType dtype) {
  constexpr size_t kPeriod = (size_t{1} << 20) + 7;
  static std::mt19937_64 generator(std::random_device{}());
  std::normal_distribution<double> normal;
  std::vector<double> values(std::min(kPeriod, bytes / SizeOf(dtype)));
  for (double& x : values) x = normal(generator);
  std::vector<unsigned char> typed(values.size() * SizeOf(dtype));
  FromDoubles(dtype, values, typed.data());
  for (size_t at = 0; at < bytes; at += typed.size()) {
    FLASHBOB_RETURN_IF_ERROR(ToStatus(cudaMemcpy(static_cast<char*>(device) + at, typed.data(),
                                                 std::min(typed.size(), bytes - at), cudaMemcpyHostToDevice),
                                      "filling a tensor"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Computation> MakeComputation(Operation operation, const Options& options, const ShapeSpec& shape) {
  ProblemOptions problem_options;
  problem_options.window_right = shape.causal ? 0 : -1;
  problem_options.window_left = shape.window > 0 ? shape.window - 1 : -1;
  problem_options.deterministic = options.deterministic;
  problem_options.allow_tf32 = options.tf32;
  problem_options.probes = options.probes;
  const Shape extents = {shape.batch, shape.heads, shape.length, shape.dim};
  std::vector<TensorInfo> inputs;
  const Shape kv_extents = {shape.batch, shape.kv_heads, shape.length, shape.dim};
  inputs.push_back({kQ, options.dtype, extents});
  for (TensorName name : {kK, kV}) inputs.push_back({name, options.dtype, kv_extents});
  FLASHBOB_ASSIGN_OR_RETURN(const AttentionProblem problem, AttentionProblem::FromShapes(problem_options, inputs));
  TensorSet more;
  if (operation != Operation::kForward && !options.recompute) more = {kO, kLse};
  if (operation == Operation::kBackward) more = more | TensorSet{kDo};
  if (operation == Operation::kDoubleBackward) more.Add(kDo);
  if (operation == Operation::kDoubleBackward || operation == Operation::kJvp) {
    for (const std::string& of : options.tangents) {
      const std::optional<TensorName> name = ParseTensorName((operation == Operation::kJvp ? "t" : "u") + of);
      if (!name.has_value()) return absl::InvalidArgumentError("a tangent of \"" + of + "\": q, k and v have one");
      more.Add(*name);
    }
  }
  more.ForEach([&](TensorName name) { inputs.push_back({name, problem.DTypeOf(name), problem.ShapeOf(name)}); });
  return Computation::Create(operation, problem_options, inputs, {});
}

absl::StatusOr<nlohmann::json> TimeOperation(Operation operation, const Options& options, const ShapeSpec& shape,
                                             const cuda::DeviceTraits& traits, TensorPointers& tensors,
                                             std::vector<DeviceBuffer>& buffers, cudaStream_t stream) {
  FLASHBOB_ASSIGN_OR_RETURN(const Computation computation, MakeComputation(operation, options, shape));
  const AttentionProblem& problem = computation.problem();
  for (int i = 0; i < kNumTensorNames; ++i) {
    const auto name = static_cast<TensorName>(i);
    if ((!computation.HasInput(name) && !computation.Wants(name)) || tensors.Get(name) != nullptr) continue;
    const auto bytes = static_cast<size_t>(problem.NumBytes(name));
    FLASHBOB_ASSIGN_OR_RETURN(DeviceBuffer buffer, DeviceBuffer::Create(bytes));
    FLASHBOB_RETURN_IF_ERROR(FillNormal(buffer.data(), bytes, problem.DTypeOf(name)));
    tensors.Set(name, buffer.data());
    buffers.push_back(std::move(buffer));
  }
  FLASHBOB_ASSIGN_OR_RETURN(const std::unique_ptr<const cuda::CudaPlan> plan,
                            cuda::CudaPlan::Create(computation, traits, options.slice_seconds));
  FLASHBOB_ASSIGN_OR_RETURN(const DeviceBuffer workspace, DeviceBuffer::Create(plan->workspace_bytes()));
  std::vector<cudaEvent_t> events(static_cast<size_t>(plan->num_slices()) + 1);
  for (cudaEvent_t& event : events) FLASHBOB_RETURN_IF_ERROR(ToStatus(cudaEventCreate(&event), "cudaEventCreate"));
  std::vector<double> times;
  double longest_slice = 0;
  const int warm_up = options.reps >= 5 ? 2 : 0;
  for (int rep = -warm_up; rep < options.reps; ++rep) {
    FLASHBOB_RETURN_IF_ERROR(ToStatus(cudaEventRecord(events[0], stream), "cudaEventRecord"));
    for (int slice = 0; slice < plan->num_slices(); ++slice) {
      FLASHBOB_RETURN_IF_ERROR(plan->Launch(slice, tensors, workspace.data(), stream));
      FLASHBOB_RETURN_IF_ERROR(
          ToStatus(cudaEventRecord(events[static_cast<size_t>(slice) + 1], stream), "cudaEventRecord"));
    }
    FLASHBOB_RETURN_IF_ERROR(ToStatus(cudaStreamSynchronize(stream), Name(operation)));
    float ms = 0;
    FLASHBOB_RETURN_IF_ERROR(ToStatus(cudaEventElapsedTime(&ms, events.front(), events.back()), "timing"));
    if (rep >= 0) times.push_back(ms);
    for (size_t i = 1; i < events.size(); ++i) {
      FLASHBOB_RETURN_IF_ERROR(ToStatus(cudaEventElapsedTime(&ms, events[i - 1], events[i]), "timing"));
      if (rep >= 0) longest_slice = std::max(longest_slice, static_cast<double>(ms));
    }
  }
  for (cudaEvent_t event : events) cudaEventDestroy(event);
  std::sort(times.begin(), times.end());
  const double median = times[times.size() / 2];
  return nlohmann::json{{"operation", Name(operation)},
                        {"shape", {shape.batch, shape.heads, shape.length, shape.dim}},
                        {"kv_heads", shape.kv_heads},
                        {"causal", shape.causal},
                        {"window", shape.window},
                        {"portable", options.portable},
                        {"dtype", Name(options.dtype)},
                        {"deterministic", options.deterministic},
                        {"tf32", options.tf32},
                        {"recompute", options.recompute},
                        {"probes", options.probes},
                        {"tangents", options.tangents},
                        {"ms", median},
                        {"fastest_ms", times.front()},
                        {"slowest_ms", times.back()},
                        {"tflops", computation.flops() / median / 1e9},
                        {"slices", plan->num_slices()},
                        {"longest_slice_ms", longest_slice},
                        {"input_bytes", computation.input_bytes()},
                        {"output_bytes", computation.output_bytes()},
                        {"workspace_bytes", plan->workspace_bytes()}};
}

absl::Status Run(const Options& options) {
  int device = 0;
  cudaDeviceProp properties;
  FLASHBOB_RETURN_IF_ERROR(ToStatus(cudaGetDeviceProperties(&properties, device), "looking for a GPU"));
  FLASHBOB_ASSIGN_OR_RETURN(cuda::DeviceTraits traits, cuda::ReadDeviceTraits(device));
  if (options.portable) traits.hopper_kernels = false;
  cudaStream_t stream = nullptr;
  FLASHBOB_RETURN_IF_ERROR(ToStatus(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "creating a stream"));
  nlohmann::json results = nlohmann::json::array();
  for (const ShapeSpec& shape : options.shapes) {
    TensorPointers tensors;
    std::vector<DeviceBuffer> buffers;
    // The forward makes o and lse real for the others, whether it is wanted or not.
    FLASHBOB_ASSIGN_OR_RETURN(const nlohmann::json forward,
                              TimeOperation(Operation::kForward, options, shape, traits, tensors, buffers, stream));
    for (Operation operation : options.operations) {
      if (operation == Operation::kForward) {
        results.push_back(forward);
        continue;
      }
      FLASHBOB_ASSIGN_OR_RETURN(nlohmann::json result,
                                TimeOperation(operation, options, shape, traits, tensors, buffers, stream));
      results.push_back(std::move(result));
    }
  }
  FLASHBOB_RETURN_IF_ERROR(ToStatus(cudaStreamDestroy(stream), "destroying a stream"));
  std::cout << nlohmann::json{{"device", properties.name}, {"results", results}}.dump() << "\n";
  return absl::OkStatus();
}

bool ParseShape(const std::string& text, ShapeSpec& shape) {
  const std::vector<std::string> parts = absl::StrSplit(text, ',');
  if (parts.size() < 4 || parts.size() > 5) return false;
  shape.causal = parts.size() == 5;
  const std::vector<std::string> heads = absl::StrSplit(parts[1], '/');
  if (shape.causal && parts[4] != "c" && (parts[4][0] != 'w' || !absl::SimpleAtoi(parts[4].substr(1), &shape.window))) {
    return false;
  }
  return absl::SimpleAtoi(parts[0], &shape.batch) && absl::SimpleAtoi(heads.front(), &shape.heads) &&
         absl::SimpleAtoi(heads.back(), &shape.kv_heads) && absl::SimpleAtoi(parts[2], &shape.length) &&
         absl::SimpleAtoi(parts[3], &shape.dim);
}

bool Parse(int argc, char** argv, Options& options) {
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const std::string value = i + 1 < argc ? argv[i + 1] : "";
    if (argument == "--deterministic") {
      options.deterministic = true;
    } else if (argument == "--tf32") {
      options.tf32 = true;
    } else if (argument == "--recompute") {
      options.recompute = true;
    } else if (argument == "--tangents") {
      options.tangents = absl::StrSplit(value, ',');
      ++i;
    } else if (argument == "--probes") {
      if (!absl::SimpleAtoi(value, &options.probes)) return false;
      ++i;
    } else if (argument == "--portable") {
      options.portable = true;
    } else if (argument == "--dtype") {
      const std::optional<DType> dtype = ParseDType(value);
      if (!dtype.has_value()) return false;
      options.dtype = *dtype;
      ++i;
    } else if (argument == "--ops") {
      options.operations.clear();
      for (const std::string& name : std::vector<std::string>(absl::StrSplit(value, ','))) {
        const std::optional<Operation> operation = ParseOperation(name);
        if (!operation.has_value()) return false;
        options.operations.push_back(*operation);
      }
      ++i;
    } else if (argument == "--reps") {
      if (!absl::SimpleAtoi(value, &options.reps) || options.reps < 1) return false;
      ++i;
    } else {
      ShapeSpec shape;
      if (!ParseShape(argument, shape)) return false;
      options.shapes.push_back(shape);
    }
  }
  return !options.shapes.empty();
}

}  // namespace
}  // namespace flashbob

int main(int argc, char** argv) {
  flashbob::Options options;
  if (!flashbob::Parse(argc, argv, options)) {
    std::cerr << "usage: cuda_attention_benchmark [--dtype bf16|fp16|fp32|fp64] [--ops NAME,...] [--reps N] "
                 "[--deterministic] [--portable] [--tf32] [--tangents q,k,v] [--probes P] [--recompute] "
                 "B,H[/kv],N,D[,c|,wL] ...\n";
    return 2;
  }
  const absl::Status status = flashbob::Run(options);
  if (!status.ok()) {
    std::cerr << status << "\n";
    return 1;
  }
  return 0;
}
