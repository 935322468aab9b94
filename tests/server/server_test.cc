// The server in process: whole requests, from spec to chunks.
#include "server/server.h"

#include <gtest/gtest.h>

#include <vector>

#include "server/service/spec.h"
#include "tests/server/testing/test_server.h"

namespace flashbob::server {
namespace {

// What the engine must make of the inputs that ComputeStream::SendInputs sends.
std::vector<std::string> ExpectedOutputs(const v1::ComputeSpec& spec) {
  const ParsedSpec parsed = *ParseSpec(spec);
  std::vector<std::vector<char>> inputs;
  TensorPointers pointers;
  for (size_t t = 0; t < parsed.inputs.size(); ++t) {
    std::vector<char>& bytes = inputs.emplace_back();
    for (int64_t i = 0; i < BytesOf(spec.inputs(static_cast<int>(t))); ++i) {
      bytes.push_back(ComputeStream::PatternByte(t, i));
    }
    pointers.SetInput(parsed.inputs[t], bytes.data());
  }
  std::vector<std::string> outputs;
  for (TensorName name : parsed.outputs) {
    const std::vector<std::byte> pattern = PatternOf(parsed.computation, pointers, name);
    outputs.emplace_back(reinterpret_cast<const char*>(pattern.data()), pattern.size());
  }
  return outputs;
}

TEST(ServerTest, ComputesFromSpecToChunks) {
  TestServer server;
  const auto stub = server.Connect();
  const v1::ComputeSpec spec = ForwardSpec(3, 33, 17);
  const Computed computed = Compute(*stub, spec, 1000);
  ASSERT_TRUE(computed.status.ok()) << computed.status.error_message();
  EXPECT_EQ(computed.outputs, ExpectedOutputs(spec));
}

}  // namespace
}  // namespace flashbob::server
