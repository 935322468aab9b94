// The `flashbob` program as a user meets it: arguments, files, streams and exit codes.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "client/cli/safetensors.h"
#include "kernels/conformance/case.h"
#include "kernels/conformance/error.h"
#include "kernels/convert.h"
#include "kernels/devices/devices.h"
#include "kernels/reference/reference.h"
#include "tests/client/fake_service.h"
#include "tests/client/program.h"
#include "tests/seed.h"

namespace flashbob::cli {
namespace {

using conformance::CaseSpec;
using conformance::ConformanceCase;
using nlohmann::json;
using safetensors::Tensor;

// Standard output as the one JSON object that it must be.
json ObjectOf(const ProgramResult& result) {
  json object = json::parse(result.out, nullptr, /*allow_exceptions=*/false);
  EXPECT_TRUE(object.is_object()) << "stdout: " << result.out << "\nstderr: " << result.err;
  return object;
}

safetensors::DType FileDType(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16:
      return safetensors::DType::kBF16;
    case DType::kFloat16:
      return safetensors::DType::kF16;
    case DType::kFloat32:
      return safetensors::DType::kF32;
    case DType::kFloat64:
      return safetensors::DType::kF64;
  }
  return safetensors::DType::kF32;
}

// A directory of its own for each test, gone afterwards.
class CliTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "flashbob-cli-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string Path(const std::string& name) const { return (directory_ / name).string(); }

  // Writes the inputs of a case, cu_seqlens as int32 tensors and one tensor that no operation takes.
  std::map<TensorName, std::vector<double>> WriteInputs(const ConformanceCase& c, const std::string& name) const {
    const AttentionProblem& problem = c.computation().problem();
    const auto inputs = conformance::MakeInputs(c).value();
    std::vector<std::vector<std::byte>> bytes;
    std::vector<Tensor> tensors;
    const auto add = [&](const std::string& tensor, safetensors::DType dtype, const Shape& shape, size_t size) {
      tensors.push_back({tensor, dtype, shape, bytes.emplace_back(size)});
      return bytes.back().data();
    };
    for (const auto& [input, values] : inputs) {
      const DType dtype = problem.DTypeOf(input);
      std::byte* data = add(Name(input), FileDType(dtype), problem.ShapeOf(input), values.size() * SizeOf(dtype));
      FromDoubles(dtype, values, data);
    }
    const auto add_starts = [&](const char* tensor, const std::vector<int64_t>& starts) {
      if (starts.empty()) return;
      const std::vector<int32_t> narrow(starts.begin(), starts.end());
      std::byte* data = add(tensor, safetensors::DType::kI32, {static_cast<int64_t>(narrow.size())}, narrow.size() * 4);
      std::memcpy(data, narrow.data(), narrow.size() * 4);
    };
    add_starts("cu_seqlens_q", problem.options().cu_seqlens_q);
    add_starts("cu_seqlens_k", problem.options().cu_seqlens_k);
    add("unrelated", safetensors::DType::kI64, {0}, 0);
    const absl::Status written = safetensors::Write(Path(name), tensors, {});
    EXPECT_TRUE(written.ok()) << written;
    return inputs;
  }

  // Runs a case through files with these flags and compares every output with the reference.
  void ExpectRunIsRight(const CaseSpec& spec, const std::vector<std::string>& flags) const {
    const ConformanceCase c = ConformanceCase::Create(spec).value();
    const Computation& computation = c.computation();
    const AttentionProblem& problem = computation.problem();
    const auto inputs = WriteInputs(c, "in");
    std::vector<std::string> arguments = {"run", Name(spec.operation), Path("in"), "-o", Path("out"), "--embedded"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const ProgramResult result = RunProgram(arguments);
    ASSERT_EQ(result.exit_code, 0) << result.err;

    const absl::StatusOr<safetensors::File> out = safetensors::File::Open(Path("out"));
    ASSERT_TRUE(out.ok()) << out.status();
    const ReferenceResult reference = ComputeReference(computation, inputs).value();
    EXPECT_EQ(out->tensors().size(), reference.outputs.size());
    for (const auto& [name, expected] : reference.outputs) {
      const Tensor* tensor = out->Find(Name(name));
      ASSERT_NE(tensor, nullptr) << Name(name);
      EXPECT_EQ(tensor->shape, problem.ShapeOf(name));
      EXPECT_EQ(tensor->dtype, FileDType(problem.DTypeOf(name)));
      const std::vector<double> got = ToDoubles(problem.DTypeOf(name), tensor->data.data(), expected.value.size());
      EXPECT_LE(conformance::RelativeError(got, expected, problem.DTypeOf(name)), 1e-5) << Name(name);
    }
    EXPECT_EQ(out->metadata().at("operation"), Name(spec.operation));
    EXPECT_EQ(out->metadata().at("layout"), Name(spec.options.layout));
  }

  static CaseSpec Small(Operation operation) {
    CaseSpec spec;
    spec.operation = operation;
    spec.batch = 2;
    spec.heads = 4;
    spec.kv_heads = 2;
    spec.query_len = 9;
    spec.key_len = 13;
    spec.head_dim = 8;
    spec.value_dim = 6;
    spec.seed = testing_seed::Seed();
    return spec;
  }

  std::filesystem::path directory_;
};

TEST_F(CliTest, EveryHelpHasExamples) {
  for (const std::string command : {"run", "check", "bench", "info"}) {
    const ProgramResult help = RunProgram({command, "--help"});
    EXPECT_EQ(help.exit_code, 0);
    EXPECT_NE(help.out.find("Examples:\n  flashbob " + command), std::string::npos) << help.out;
    EXPECT_NE(help.out.find("--server HOST:PORT"), std::string::npos) << help.out;
    EXPECT_EQ(help.err, "");
  }
  const ProgramResult help = RunProgram({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_NE(help.out.find("Exit codes: 0 success; 1 "), std::string::npos) << help.out;
  EXPECT_EQ(RunProgram({"--version"}).out, std::string(FLASHBOB_VERSION) + "\n");
}

TEST_F(CliTest, WrongUsageExitsWith2AndSaysWhyOnStandardError) {
  WriteInputs(ConformanceCase::Create(Small(Operation::kForward)).value(), "in");
  const std::string in = Path("in");
  const std::string out = Path("out");
  const std::vector<std::vector<std::string>> cases = {
      {},
      {"walk"},
      {"run"},
      {"run", "forward"},
      {"run", "forward", in},
      {"run", "sideways", in, "-o", out},
      {"run", "forward", in, "-o", out, "--embedded", "--server", "127.0.0.1:1"},
      {"run", "forward", in, "-o", out, "--embedded", "--causal", "top-left", "--align", "bottom-right"},
      {"run", "forward", in, "-o", out, "--embedded", "--window", "3"},
      {"run", "forward", in, "-o", out, "--embedded", "--outputs", "o,nothing"},
      {"run", "forward", in, "-o", out, "--embedded", "--outputs", ""},
      {"run", "forward", in, "-o", out, "--embedded", "--dtype", "fp32"},
      {"info", "--embedded", "--timeout", "0"},
      {"info", "--server", ""},
      {"info", "--embedded", "--device", "tpu"},
      {"info", "--embedded", "--device", "cuda:4096"},
      {"info", "--embedded", "--device", "cpu,cuda:0"},
      {"info", "--device", "cpu"},
      {"info", "extra"},
      {"bench", "--embedded", "--shape", "1,2,3"},
      {"bench", "--embedded", "--shape", "1,2,3,x"},
      {"bench", "--embedded", "--dtype", "int8"},
      {"bench", "--embedded", "--concurrency", "0"},
      {"bench", "--embedded", "--duration", "-1"},
      {"bench", "--embedded", "--shape", "1099511627776,1,1,8", "--layout", "THD"},
      {"check", "--embedded", "--dtype", "fp8"},
      {"check", "--embedded", "--seed", "x"},
  };
  for (const std::vector<std::string>& arguments : cases) {
    const ProgramResult result = RunProgram(arguments);
    std::string line;
    for (const std::string& argument : arguments) line += argument + " ";
    EXPECT_EQ(result.exit_code, 2) << line;
    EXPECT_NE(result.err, "") << line;
    EXPECT_EQ(result.out, "") << line;
  }
  EXPECT_FALSE(std::filesystem::exists(out));
}

TEST_F(CliTest, WrongUsageWithJsonIsOneObjectToo) {
  const ProgramResult result = RunProgram({"bench", "--json", "--concurrency", "0"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(ObjectOf(result)["error"]["code"], "INVALID_ARGUMENT");
  EXPECT_NE(ObjectOf(result)["error"]["message"].get<std::string>().find("--concurrency"), std::string::npos);
}

TEST_F(CliTest, ResultsThatCannotBePrintedExitWith2) {
  for (const std::vector<std::string>& flags : {std::vector<std::string>{}, {"--json"}}) {
    std::vector<std::string> arguments = {"info", "--embedded"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const ProgramResult result = RunProgram(arguments, {}, "/dev/full");
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_NE(result.err.find("standard output"), std::string::npos) << result.err;
  }
}

TEST_F(CliTest, TensorsOfOtherTypesInAFileAreLeftAlone) {
  const std::vector<std::byte> mask(3);
  const std::vector<float> q(4);
  const std::span<const std::byte> floats = std::as_bytes(std::span(q));
  const Tensor tensors[] = {{"mask", safetensors::DType::kBool, {3}, mask},
                            {"codes", safetensors::DType::kF8E4M3, {3}, mask},
                            {"q", safetensors::DType::kF32, {1, 1, 2, 2}, floats},
                            {"k", safetensors::DType::kF32, {1, 1, 2, 2}, floats},
                            {"v", safetensors::DType::kF32, {1, 1, 2, 2}, floats}};
  ASSERT_TRUE(safetensors::Write(Path("in"), tensors, {}).ok());
  const ProgramResult result = RunProgram({"run", "forward", Path("in"), "-o", Path("out"), "--embedded", "--json"});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  std::vector<std::string> ignored = ObjectOf(result)["ignored"];
  std::sort(ignored.begin(), ignored.end());
  EXPECT_EQ(ignored, (std::vector<std::string>{"codes", "mask"}));
}

TEST_F(CliTest, FilesThatCannotBeUsedExitWith2) {
  std::ofstream(Path("text")) << "no tensors here, only words";
  std::ofstream(Path("empty"));
  const std::vector<int64_t> integers = {1, 2, 3, 4};
  const Tensor integer[] = {{"q", safetensors::DType::kI64, {1, 1, 2, 2}, std::as_bytes(std::span(integers))}};
  ASSERT_TRUE(safetensors::Write(Path("integers"), integer, {}).ok());
  for (const char* name : {"absent", "text", "empty", "integers", "."}) {
    const ProgramResult result = RunProgram({"run", "forward", Path(name), "-o", Path("out"), "--embedded", "--json"});
    EXPECT_EQ(result.exit_code, 2) << name;
    EXPECT_NE(ObjectOf(result)["error"]["message"], "") << name;
  }
  WriteInputs(ConformanceCase::Create(Small(Operation::kForward)).value(), "in");
  const ProgramResult unwritable = RunProgram({"run", "forward", Path("in"), "-o", Path("absent/out"), "--embedded"});
  EXPECT_EQ(unwritable.exit_code, 2);
  EXPECT_NE(unwritable.err.find("absent/out"), std::string::npos) << unwritable.err;
}

TEST_F(CliTest, RefusedComputationExitsWith1AndNamesTheNumbers) {
  WriteInputs(ConformanceCase::Create(Small(Operation::kForward)).value(), "in");
  const ProgramResult lacks = RunProgram({"run", "backward", Path("in"), "-o", Path("out"), "--embedded"});
  EXPECT_EQ(lacks.exit_code, 1);
  EXPECT_NE(lacks.err.find("backward lacks input do"), std::string::npos) << lacks.err;
  const ProgramResult rank =
      RunProgram({"run", "forward", Path("in"), "-o", Path("out"), "--embedded", "--layout", "THD", "--json"});
  EXPECT_EQ(rank.exit_code, 1);
  EXPECT_EQ(ObjectOf(rank)["error"]["code"], "INVALID_ARGUMENT");
  EXPECT_EQ(ObjectOf(rank)["error"]["message"], "q has 4 axes, shape [2, 4, 9, 8]; layout THD needs 3");
  EXPECT_FALSE(std::filesystem::exists(Path("out")));
}

TEST_F(CliTest, RunComputesEveryOperation) {
  ExpectRunIsRight(Small(Operation::kForward), {});
  ExpectRunIsRight(Small(Operation::kBackward), {});
  CaseSpec bob = Small(Operation::kDoubleBackward);
  bob.optional_inputs = {TensorName::kUq, TensorName::kUv, TensorName::kO, TensorName::kLse};
  ExpectRunIsRight(bob, {});
  CaseSpec jvp = Small(Operation::kJvp);
  jvp.optional_inputs = {TensorName::kTk, TensorName::kDo, TensorName::kTdo};
  ExpectRunIsRight(jvp, {});
}

TEST_F(CliTest, RunTakesMaskScaleProbesAndOutputsFromFlags) {
  CaseSpec spec = Small(Operation::kDoubleBackward);
  spec.optional_inputs = {TensorName::kUq};
  spec.outputs = {TensorName::kGk, TensorName::kGdo};
  spec.options.window_left = 4;
  spec.options.window_right = 0;
  spec.options.alignment = Alignment::kBottomRight;
  spec.options.scale = 0.5;
  spec.options.probes = 2;
  ExpectRunIsRight(
      spec, {"--causal", "bottom-right", "--window", "4,7", "--scale", "0.5", "--probes", "2", "--outputs", "gk,gdo"});
  spec.options.window_right = 2;
  ExpectRunIsRight(
      spec, {"--align", "bottom-right", "--window", "4,2", "--scale", "0.5", "--probes", "2", "--outputs", "gk,gdo"});
}

TEST_F(CliTest, RunMovesCuSeqlensIntoTheProblem) {
  CaseSpec spec = Small(Operation::kBackward);
  spec.options.layout = Layout::kTHD;
  spec.options.cu_seqlens_q = {0, 4, 4, 11};
  spec.options.cu_seqlens_k = {0, 6, 7, 12};
  spec.options.window_right = 0;
  ExpectRunIsRight(spec, {"--layout", "THD", "--causal", "top-left"});
}

TEST_F(CliTest, RunKeepsEveryDTypeAndLayout) {
  for (DType dtype : {DType::kFloat32, DType::kFloat64}) {
    CaseSpec spec = Small(Operation::kForward);
    spec.dtype = dtype;
    spec.options.layout = Layout::kBNHD;
    ExpectRunIsRight(spec, {"--layout", "BNHD"});
  }
  // Half precision rounds more than ExpectRunIsRight allows: the file's dtypes are the promise here.
  CaseSpec spec = Small(Operation::kForward);
  spec.dtype = DType::kBFloat16;
  WriteInputs(ConformanceCase::Create(spec).value(), "in");
  ASSERT_EQ(RunProgram({"run", "forward", Path("in"), "-o", Path("out"), "--embedded"}).exit_code, 0);
  const safetensors::File out = safetensors::File::Open(Path("out")).value();
  EXPECT_EQ(out.Find("o")->dtype, safetensors::DType::kBF16);
  EXPECT_EQ(out.Find("lse")->dtype, safetensors::DType::kF32);
}

TEST_F(CliTest, RunPrintsOneJsonObjectAndNothingElse) {
  WriteInputs(ConformanceCase::Create(Small(Operation::kForward)).value(), "in");
  const ProgramResult result = RunProgram({"run", "forward", Path("in"), "-o", Path("out"), "--embedded", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json object = ObjectOf(result);
  EXPECT_EQ(object["operation"], "forward");
  EXPECT_EQ(object["outputs"]["o"]["dtype"], "fp32");
  EXPECT_EQ(object["outputs"]["o"]["shape"], json({2, 4, 9, 6}));
  EXPECT_EQ(object["ignored"], json({"unrelated"}));
  EXPECT_EQ(result.err, "");
}

TEST_F(CliTest, InfoPrintsOneJsonObjectAndNothingElse) {
  const ProgramResult result = RunProgram({"info", "--embedded", "--device", "cpu", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json object = ObjectOf(result);
  EXPECT_EQ(object["version"], FLASHBOB_VERSION);
  EXPECT_EQ(object["devices"][0]["name"], "cpu");
  EXPECT_EQ(object["capabilities"][0]["operations"], json({"forward", "backward", "double_backward", "jvp"}));
  EXPECT_EQ(result.err, "");
}

TEST_F(CliTest, EmbeddedTakesTheFirstGpuAndTheCpuWhereThereIsNone) {
  const ProgramResult result = RunProgram({"info", "--embedded", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const MachineDevices machine = FindDevices();
  const std::string expected = machine.gpus.empty() ? "cpu" : "cuda:" + std::to_string(machine.gpus.front().number);
  EXPECT_EQ(ObjectOf(result)["devices"][0]["name"], expected);
}

TEST_F(CliTest, ADeviceThatIsNotThereIsAnsweredWithThoseThatAre) {
  const ProgramResult result = RunProgram({"info", "--embedded", "--device", "cuda:4096"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("no device cuda:4096; this machine has cpu"), std::string::npos) << result.err;
}

TEST_F(CliTest, BenchPrintsTheKeysThatAreFixedAndNothingElse) {
  const ProgramResult result =
      RunProgram({"bench", "--embedded", "--json", "--shape", "1,4/2,33,16", "--op", "backward", "--dtype", "fp64",
                  "--duration", "0.05", "--concurrency", "2", "--causal", "top-left"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json object = ObjectOf(result);
  std::vector<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.push_back(key);
  EXPECT_EQ(keys,
            (std::vector<std::string>{"compute_ms", "dtype", "gigabytes_per_second", "operation", "p50_ms", "p90_ms",
                                      "p99_ms", "queue_ms", "requests", "seconds", "shape", "tflops", "wire_ms"}));
  EXPECT_EQ(object["operation"], "backward");
  EXPECT_EQ(object["shape"], "1,4/2,33,16");
  EXPECT_EQ(object["dtype"], "fp64");
  EXPECT_GE(object["requests"], 2);
  EXPECT_GT(object["tflops"], 0);
  EXPECT_LE(object["p50_ms"], object["p90_ms"]);
  EXPECT_LE(object["p90_ms"], object["p99_ms"]);
  EXPECT_EQ(result.err, "");
}

TEST_F(CliTest, BenchPacksSequencesInTheirLayout) {
  const ProgramResult result = RunProgram(
      {"bench", "--embedded", "--layout", "THD", "--shape", "3,2,17,8", "--duration", "0.01", "--probes", "2"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("THD B3"), std::string::npos) << result.out;
}

TEST_F(CliTest, CheckPrintsTheKeysThatAreFixedAndNothingElse) {
  const std::string seed = std::to_string(testing_seed::Seed());
  const ProgramResult result =
      RunProgram({"check", "--embedded", "--json", "--op", "double_backward", "--dtype", "fp64", "--seed", seed});
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  const json object = ObjectOf(result);
  EXPECT_EQ(object.size(), 2u);
  EXPECT_EQ(object["ok"], true);
  ASSERT_GT(object["cases"].size(), 3u);
  for (const json& each : object["cases"]) {
    EXPECT_EQ(each["operation"], "double_backward");
    EXPECT_EQ(each["dtype"], "fp64");
    EXPECT_TRUE(each["mask"].is_string() && each["shape"].is_string()) << each;
    EXPECT_EQ(each["ok"], true);
    EXPECT_GT(each["bar"], 0);
    for (const auto& [name, output] : each["outputs"].items()) EXPECT_LE(output["error"], each["bar"]) << name;
  }
  EXPECT_EQ(result.err, "");
}

TEST_F(CliTest, ServerThatIsNotThereExitsWith3) {
  std::string address;
  { address = client::FakeService({client::FailWith(grpc::Status::OK)}).address(); }
  for (const std::string command : {"info", "check", "bench"}) {
    const ProgramResult result = RunProgram({command, "--server", address});
    EXPECT_EQ(result.exit_code, 3) << command;
    EXPECT_EQ(result.out, "") << command;
    EXPECT_NE(result.err.find(address), std::string::npos) << result.err;
  }
  const ProgramResult result = RunProgram({"info", "--json"}, {{"FLASHBOB_SERVER", address}});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(ObjectOf(result)["error"]["code"], "UNAVAILABLE");
}

TEST_F(CliTest, ServerIsTheFlagsElseTheEnvironments) {
  client::FakeService one({client::FailWith(grpc::Status::OK)});
  client::FakeService other({client::FailWith(grpc::Status::OK)});
  one.info.set_version("one");
  other.info.set_version("other");
  const std::map<std::string, std::string> environment = {{"FLASHBOB_SERVER", one.address()}};
  EXPECT_EQ(ObjectOf(RunProgram({"info", "--json"}, environment))["version"], "one");
  EXPECT_EQ(ObjectOf(RunProgram({"info", "--json", "--server", other.address()}, environment))["version"], "other");
  // An embedded run asks nobody.
  EXPECT_EQ(ObjectOf(RunProgram({"info", "--json", "--embedded"}, environment))["version"], FLASHBOB_VERSION);
}

TEST_F(CliTest, ErrorsOfTheServerKeepCodeReasonAndText) {
  const client::FakeService service({client::FailWith(
      client::ErrorWithDetails(grpc::StatusCode::FAILED_PRECONDITION, "7 bytes are too many", "TOO_LARGE"))});
  WriteInputs(ConformanceCase::Create(Small(Operation::kForward)).value(), "in");
  const ProgramResult result =
      RunProgram({"run", "forward", Path("in"), "-o", Path("out"), "--server", service.address(), "--json"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(ObjectOf(result)["error"],
            json({{"code", "FAILED_PRECONDITION"}, {"reason", "TOO_LARGE"}, {"message", "7 bytes are too many"}}));
  const ProgramResult bench = RunProgram({"bench", "--server", service.address(), "--shape", "1,1,8,8"});
  EXPECT_EQ(bench.exit_code, 1);
  EXPECT_NE(bench.err.find("TOO_LARGE: 7 bytes are too many"), std::string::npos) << bench.err;
}

TEST_F(CliTest, CheckThatAServerFailsExitsWith1) {
  const client::FakeService service({client::FailWith({grpc::StatusCode::UNIMPLEMENTED, "not today"})});
  const ProgramResult result =
      RunProgram({"check", "--server", service.address(), "--op", "forward", "--dtype", "fp32", "--json"});
  EXPECT_EQ(result.exit_code, 1);
  const json object = ObjectOf(result);
  EXPECT_EQ(object["ok"], false);
  EXPECT_NE(object["cases"][0]["failure"].get<std::string>().find("not today"), std::string::npos);
  EXPECT_NE(result.err.find("seed"), std::string::npos) << "a failure must be repeatable: " << result.err;
}

TEST_F(CliTest, ProgressIsShownOnATerminalAfterASecondAndNeverInAPipe) {
  const std::vector<std::string> arguments = {"bench", "--embedded", "--shape", "1,1,16,8", "--duration", "1.3"};
  const ProgramResult piped = RunProgram(arguments);
  EXPECT_EQ(piped.exit_code, 0);
  EXPECT_EQ(piped.err, "");
  EXPECT_EQ(piped.out.find('\r'), std::string::npos);
  const ProgramResult terminal = RunProgramOnTerminal(arguments);
  EXPECT_EQ(terminal.exit_code, 0);
  EXPECT_NE(terminal.out.find("% measuring"), std::string::npos) << terminal.out;
  const ProgramResult short_run =
      RunProgramOnTerminal({"bench", "--embedded", "--shape", "1,1,16,8", "--duration", "0.01"});
  EXPECT_EQ(short_run.out.find("% measuring"), std::string::npos) << short_run.out;
}

}  // namespace
}  // namespace flashbob::cli
