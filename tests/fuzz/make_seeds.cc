// make_seeds DIRECTORY: writes the seeds of every fuzz target, a folder each. They are small and valid, one for each
// kind of input; the fuzzer does the rest.
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "flashbob/v1/attention_service.pb.h"
#include "tests/fuzz/exchange.pb.h"

namespace flashbob::fuzz {
namespace {

using v1::TensorName;

class Folder {
 public:
  explicit Folder(std::filesystem::path path) : path_(std::move(path)) { std::filesystem::create_directories(path_); }
  void Add(const std::string& bytes) { std::ofstream(path_ / std::to_string(next_++), std::ios::binary) << bytes; }

 private:
  const std::filesystem::path path_;
  int next_ = 0;
};

void AddInput(v1::ComputeSpec& spec, TensorName name, v1::DataType dtype, const std::vector<int64_t>& shape) {
  v1::InputTensor& input = *spec.add_inputs();
  input.mutable_tensor()->set_name(name);
  input.mutable_tensor()->set_dtype(dtype);
  for (int64_t extent : shape) input.mutable_tensor()->add_shape(extent);
  input.mutable_inline_();
}

// Batch 1, 2 heads over 1, 3 queries, 4 keys, head dim 2, value dim 1.
v1::ComputeSpec Spec(v1::Operation operation, const std::vector<TensorName>& more) {
  v1::ComputeSpec spec;
  spec.set_operation(operation);
  spec.set_request_id("seed");
  spec.mutable_problem()->set_layout(v1::LAYOUT_BHND);
  AddInput(spec, v1::TENSOR_NAME_Q, v1::DATA_TYPE_FP32, {1, 2, 3, 2});
  AddInput(spec, v1::TENSOR_NAME_K, v1::DATA_TYPE_FP32, {1, 1, 4, 2});
  AddInput(spec, v1::TENSOR_NAME_V, v1::DATA_TYPE_FP32, {1, 1, 4, 1});
  for (TensorName name : more) {
    const bool keys = name == v1::TENSOR_NAME_UK || name == v1::TENSOR_NAME_UV || name == v1::TENSOR_NAME_TK;
    const bool values = name == v1::TENSOR_NAME_DO || name == v1::TENSOR_NAME_UV || name == v1::TENSOR_NAME_TDO ||
                        name == v1::TENSOR_NAME_O;
    if (name == v1::TENSOR_NAME_LSE) {
      AddInput(spec, name, v1::DATA_TYPE_FP32, {1, 2, 3});
    } else {
      AddInput(spec, name, v1::DATA_TYPE_FP32, {1, keys ? 1 : 2, keys ? 4 : 3, values ? 1 : 2});
    }
  }
  return spec;
}

template <typename Request, typename Spec>
std::string Stream(const Spec& spec, const std::vector<int64_t>& bytes, bool put) {
  Exchange exchange;
  exchange.set_put(put);
  Request request;
  *request.mutable_spec() = spec;
  exchange.add_messages(request.SerializeAsString());
  for (size_t i = 0; i < bytes.size(); ++i) {
    for (int64_t offset = 0; offset < bytes[i]; offset += 32) {
      request.mutable_chunk()->set_tensor_index(static_cast<uint32_t>(i));
      request.mutable_chunk()->set_byte_offset(offset);
      request.mutable_chunk()->set_data(
          std::string(static_cast<size_t>(std::min<int64_t>(32, bytes[i] - offset)), 'x'));
      exchange.add_messages(request.SerializeAsString());
    }
  }
  return exchange.SerializeAsString();
}

std::string Stream(const v1::ComputeSpec& spec) {
  std::vector<int64_t> bytes;
  for (const v1::InputTensor& input : spec.inputs()) {
    int64_t each = input.tensor().dtype() == v1::DATA_TYPE_FP32 ? 4 : 2;
    for (int64_t extent : input.tensor().shape()) each *= extent;
    bytes.push_back(input.has_inline_() ? each : 0);
  }
  return Stream<v1::ComputeRequest>(spec, bytes, false);
}

void WriteWire(Folder folder) {
  folder.Add(Stream(Spec(v1::OPERATION_FORWARD, {})));
  v1::ComputeSpec masked = Spec(v1::OPERATION_BACKWARD, {v1::TENSOR_NAME_DO, v1::TENSOR_NAME_O, v1::TENSOR_NAME_LSE});
  masked.mutable_problem()->mutable_mask()->set_left(1);
  masked.mutable_problem()->mutable_mask()->set_right(0);
  masked.mutable_problem()->mutable_mask()->set_alignment(v1::MASK_ALIGNMENT_BOTTOM_RIGHT);
  masked.mutable_problem()->set_scale(0.5);
  folder.Add(Stream(masked));
  v1::ComputeSpec kept = Spec(v1::OPERATION_DOUBLE_BACKWARD, {v1::TENSOR_NAME_DO, v1::TENSOR_NAME_UQ});
  kept.mutable_inputs(0)->set_handle("flashbob.00112233445566778899aabbccddeeff");
  kept.add_outputs()->set_name(v1::TENSOR_NAME_GQ);
  kept.mutable_outputs(0)->mutable_inline_();
  kept.add_outputs()->set_name(v1::TENSOR_NAME_GDO);
  kept.mutable_outputs(1)->mutable_keep()->set_lease_seconds(60);
  folder.Add(Stream(kept));
  folder.Add(Stream(Spec(v1::OPERATION_JVP, {v1::TENSOR_NAME_DO, v1::TENSOR_NAME_TQ, v1::TENSOR_NAME_TDO})));

  v1::ComputeSpec packed;
  packed.set_operation(v1::OPERATION_FORWARD);
  packed.mutable_problem()->set_layout(v1::LAYOUT_THD);
  for (int64_t start : {0, 2, 2, 5}) packed.mutable_problem()->add_cu_seqlens_q(start);
  for (int64_t start : {0, 1, 3, 4}) packed.mutable_problem()->add_cu_seqlens_k(start);
  AddInput(packed, v1::TENSOR_NAME_Q, v1::DATA_TYPE_BF16, {5, 2, 2});
  AddInput(packed, v1::TENSOR_NAME_K, v1::DATA_TYPE_BF16, {4, 1, 2});
  AddInput(packed, v1::TENSOR_NAME_V, v1::DATA_TYPE_BF16, {4, 1, 2});
  folder.Add(Stream(packed));

  v1::ComputeSpec probes = Spec(v1::OPERATION_JVP, {});
  probes.mutable_problem()->set_probes(2);
  AddInput(probes, v1::TENSOR_NAME_TV, v1::DATA_TYPE_FP32, {2, 1, 1, 4, 1});
  folder.Add(Stream(probes));

  v1::PutTensorsSpec put;
  put.set_lease_seconds(60);
  const v1::ComputeSpec forward = Spec(v1::OPERATION_FORWARD, {});
  for (const v1::InputTensor& input : forward.inputs()) *put.add_tensors() = input.tensor();
  folder.Add(Stream<v1::PutTensorsRequest>(put, {48, 32, 16}, true));
}

std::string Safetensors(const std::string& json, size_t data_bytes) {
  const uint64_t length = json.size();
  std::string bytes(sizeof(length), '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes + json + std::string(data_bytes, 'x');
}

void WriteSafetensors(Folder folder) {
  folder.Add(Safetensors("{}", 0));
  folder.Add(Safetensors(R"({"q":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}})", 8));
  folder.Add(Safetensors(R"({"__metadata__":{"operation":"forward"},"q":{"dtype":"BF16","shape":[2,2],"data_offsets":)"
                         R"([0,8]},"cu_seqlens_q":{"dtype":"I32","shape":[2],"data_offsets":[8,16]}})",
                         16));
  folder.Add(Safetensors(R"({"e":{"dtype":"F64","shape":[0,5],"data_offsets":[0,0]},"s":{"dtype":"U8","shape":[],)"
                         R"("data_offsets":[0,1]},"l":{"dtype":"I64","shape":[1],"data_offsets":[1,9]}})",
                         9));
}

void WriteConfig(Folder folder) {
  constexpr char kAlpha[] = "8ed3f6ad685b959ead7022518e1af76cd816f8e8ec7ccdda1ed4018e8f2223f8";  // of "alpha"
  folder.Add(std::string("0tenants { name: \"a\" token_sha256: \"") + kAlpha + "\" weight: 2 max_bytes: 100 }");
  folder.Add(
      "0tenants { name: \"a\" certificate_name: \"x\" max_in_flight: 3 priority: -5 } # two\n"
      "tenants { name: \"b\" certificate_name: \"y\" certificate_name: \"z\" }");
  folder.Add("2listen: \"127.0.0.1:0\" metrics_listen: \"off\" threads: 2 max_queued_requests: 64 grace_seconds: 1.5");
  folder.Add("2listen: \"0.0.0.0:1\" tls_certificate: \"c\" tls_key: \"k\" tls_client_ca: \"a\" log_format: \"json\"");
  folder.Add("2host_memory_bytes: 16777216 store_memory_bytes: 1 max_chunk_bytes: 1048576 server_name: \"node-7\"");
  folder.Add("2listen: \"off\" listen_unix: \"/run/s\" devices: \"cuda:0\" allow_insecure: true max_lease_seconds: 60");
  for (const char* value : {"34GiB", "3512", "37KiB", "3127.0.0.1:50051", "3[::1]:0", "3localhost:65535"}) {
    folder.Add(value);
  }
}

void WriteHttp(Folder folder) {
  folder.Add("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
  folder.Add("HEAD /statusz?x=1 HTTP/1.0\r\n\r\n");
  folder.Add("POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc");
  folder.Add("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
}

void WriteMetadata(Folder folder) {
  folder.Add("000-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
  folder.Add("001-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00-more");
  folder.Add("1Bearer alpha");
  folder.Add("1beta.example");
  folder.Add("2node7.00112233445566778899aabbccddeeff");
  folder.Add("3request-17");
}

void WriteOutput(Folder folder) {
  folder.Add("0a text with \"quotes\" = and \xc3\xa9\n");
  folder.Add("1<script>alert('&')</script>");
}

}  // namespace
}  // namespace flashbob::fuzz

int main(int argc, char** argv) {
  using namespace flashbob::fuzz;  // NOLINT: it is the program's own
  if (argc != 2) {
    std::fprintf(stderr, "usage: make_seeds DIRECTORY\n");
    return 2;
  }
  const std::filesystem::path top = argv[1];
  WriteWire(Folder(top / "wire"));
  WriteSafetensors(Folder(top / "safetensors"));
  WriteConfig(Folder(top / "config"));
  WriteHttp(Folder(top / "http"));
  WriteMetadata(Folder(top / "metadata"));
  WriteOutput(Folder(top / "output"));
  return 0;
}
