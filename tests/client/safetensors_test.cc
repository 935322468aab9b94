#include "client/cli/safetensors.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace flashbob::safetensors {
namespace {

std::string ReadBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void WriteBytes(const std::string& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

// The bytes of a file with this JSON and this many bytes of tensors.
std::string FileBytes(const std::string& json, size_t data_bytes) {
  const uint64_t length = json.size();
  std::string bytes(sizeof(length), '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes + json + std::string(data_bytes, 'x');
}

template <typename T>
std::vector<T> ValuesOf(const Tensor& tensor) {
  std::vector<T> values(tensor.data.size() / sizeof(T));
  std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
  return values;
}

// A directory of its own for each test, gone afterwards.
class SafetensorsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "flashbob-safetensors-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string Path(const std::string& name) const { return (directory_ / name).string(); }
  absl::Status OpenBytes(const std::string& bytes) const {
    WriteBytes(Path("file"), bytes);
    return File::Open(Path("file")).status();
  }
  size_t FilesInDirectory() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(directory_), {}));
  }

 private:
  std::filesystem::path directory_;
};

const char kReference[] = FLASHBOB_TEST_DATA "/reference.safetensors";

TEST_F(SafetensorsTest, ReadsEveryTypeThatThePythonPackageWrote) {
  const absl::StatusOr<File> file = File::Open(kReference);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->metadata(), (Metadata{{"operation", "forward"}}));
  ASSERT_EQ(file->tensors().size(), 8u);

  const std::vector<double> values = {-1, -0.5, 0, 0.5, 1, 1.5};
  const std::vector<float> floats(values.begin(), values.end());
  const auto find = [&](const char* name, DType dtype, const std::vector<int64_t>& shape) -> const Tensor& {
    const Tensor* tensor = file->Find(name);
    EXPECT_NE(tensor, nullptr) << name;
    EXPECT_EQ(tensor->dtype, dtype) << name;
    EXPECT_EQ(tensor->shape, shape) << name;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor->data.data()) % File::kAlignment, 0u) << name;
    return *tensor;
  };
  EXPECT_EQ(ValuesOf<double>(find("d", DType::kF64, {2, 3})), values);
  EXPECT_EQ(ValuesOf<float>(find("f", DType::kF32, {3, 2})), floats);
  EXPECT_EQ(ValuesOf<uint16_t>(find("h", DType::kF16, {6})),
            (std::vector<uint16_t>{0xbc00, 0xb800, 0, 0x3800, 0x3c00, 0x3e00}));
  EXPECT_EQ(ValuesOf<uint16_t>(find("b", DType::kBF16, {1, 6})),
            (std::vector<uint16_t>{0xbf80, 0xbf00, 0, 0x3f00, 0x3f80, 0x3fc0}));
  EXPECT_EQ(ValuesOf<float>(find("scalar", DType::kF32, {})), std::vector<float>{7});
  EXPECT_TRUE(find("empty", DType::kF32, {0, 5}).data.empty());
  EXPECT_EQ(ToIntegers(find("i", DType::kI32, {4})).value(), (std::vector<int64_t>{-1, 0, 1, 2147483647}));
  EXPECT_EQ(ToIntegers(find("l", DType::kI64, {2})).value(),
            (std::vector<int64_t>{-(int64_t{1} << 40), int64_t{1} << 40}));
  EXPECT_EQ(file->Find("absent"), nullptr);
}

TEST_F(SafetensorsTest, WritesTheBytesThatThePythonPackageWrites) {
  const absl::StatusOr<File> file = File::Open(kReference);
  ASSERT_TRUE(file.ok()) << file.status();
  const absl::Status written = Write(Path("copy"), file->tensors(), file->metadata());
  ASSERT_TRUE(written.ok()) << written;
  EXPECT_EQ(ReadBytes(Path("copy")), ReadBytes(kReference));
}

TEST_F(SafetensorsTest, WritesWidestFirstSoThatEveryTensorIsAligned) {
  const std::vector<uint16_t> halves = {1, 2, 3};
  const std::vector<double> doubles = {4, 5};
  const Tensor tensors[] = {{"half", DType::kF16, {3}, std::as_bytes(std::span(halves))},
                            {"double", DType::kF64, {2}, std::as_bytes(std::span(doubles))}};
  ASSERT_TRUE(Write(Path("out"), tensors, {}).ok());
  const absl::StatusOr<File> file = File::Open(Path("out"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->tensors()[0].name, "double");
  EXPECT_EQ(ValuesOf<double>(file->tensors()[0]), doubles);
  EXPECT_EQ(ValuesOf<uint16_t>(file->tensors()[1]), halves);
}

TEST_F(SafetensorsTest, FileWithoutTensorsIsValid) {
  ASSERT_TRUE(Write(Path("out"), {}, {}).ok());
  const absl::StatusOr<File> file = File::Open(Path("out"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE(file->tensors().empty());
}

TEST_F(SafetensorsTest, FailedWriteLeavesTheOldFileAndNothingElse) {
  WriteBytes(Path("out"), "old");
  const std::vector<float> values = {1, 2, 3};
  const Tensor short_by_one[] = {{"x", DType::kF32, {4}, std::as_bytes(std::span(values))}};
  EXPECT_EQ(Write(Path("out"), short_by_one, {}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReadBytes(Path("out")), "old");
  EXPECT_EQ(FilesInDirectory(), 1u);
}

TEST_F(SafetensorsTest, RefusesToWriteWhatCannotBeReadBack) {
  const std::vector<float> values = {1};
  const auto data = std::as_bytes(std::span(values));
  const auto write = [&](std::vector<Tensor> tensors, const Metadata& metadata) {
    return Write(Path("out"), tensors, metadata).code();
  };
  EXPECT_EQ(write({{"x", DType::kF32, {1}, data}, {"x", DType::kF32, {1}, data}}, {}),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(write({{"__metadata__", DType::kF32, {1}, data}}, {}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(write({{"\xff", DType::kF32, {1}, data}}, {}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(write({}, {{"key", "\xc3"}}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(FilesInDirectory(), 0u);
}

TEST_F(SafetensorsTest, ReplacesOnlyRegularFiles) {
  ASSERT_EQ(mkdir(Path("folder").c_str(), 0777), 0);
  EXPECT_EQ(Write(Path("folder"), {}, {}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Write(Path("absent/out"), {}, {}).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(FilesInDirectory(), 1u);
}

TEST_F(SafetensorsTest, OpensOnlyRegularFiles) {
  EXPECT_EQ(File::Open(Path("absent")).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(File::Open(Path(".")).status().code(), absl::StatusCode::kInvalidArgument);
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  EXPECT_EQ(File::Open(Path("pipe")).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(SafetensorsTest, RefusesALengthThatTheFileDoesNotHave) {
  EXPECT_EQ(OpenBytes("").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(OpenBytes("1234567").code(), absl::StatusCode::kInvalidArgument);
  std::string bytes = FileBytes("{}", 0);
  EXPECT_TRUE(OpenBytes(bytes).ok());
  bytes[0] = 3;
  EXPECT_NE(std::string(OpenBytes(bytes).message()).find("a header of 3 bytes; the file has 10"), std::string::npos);
  bytes.replace(0, 8, 8, '\xff');
  EXPECT_NE(std::string(OpenBytes(bytes).message()).find("18446744073709551615"), std::string::npos);
}

TEST_F(SafetensorsTest, RefusesAHeaderOverTheLimitBeforeReadingIt) {
  WriteBytes(Path("sparse"), FileBytes("{}", 0));
  std::filesystem::resize_file(Path("sparse"), uint64_t{1} << 40);
  std::fstream file(Path("sparse"), std::ios::binary | std::ios::in | std::ios::out);
  const uint64_t length = kMaxHeaderBytes + 1;
  file.write(reinterpret_cast<const char*>(&length), sizeof(length));
  file.close();
  const absl::Status status = File::Open(Path("sparse")).status();
  EXPECT_NE(std::string(status.message()).find("the limit is 16777216"), std::string::npos) << status;
}

struct Malformed {
  const char* json;
  size_t data_bytes;
  const char* expected;  // part of the error
};

TEST_F(SafetensorsTest, RefusesEveryMalformedHeaderNamingWhatIsWrong) {
  const std::vector<Malformed> cases = {
      {"", 0, "no JSON at byte"},
      {"{", 0, "no JSON at byte"},
      {"{}}", 0, "no JSON at byte 3"},
      {"[]", 0, "the header is an array"},
      {"7", 0, "the header is a number"},
      {"{\"x\":7}", 0, "key x holds a number"},
      {"{\"x\":[]}", 0, "key x holds an array"},
      {"{\"\xff\":{}}", 0, "no JSON at byte"},
      {R"({"__metadata__":{"a":1}})", 0, "metadata a is a number"},
      {R"({"__metadata__":{"a":{}}})", 0, "metadata a is an object"},
      {R"({"__metadata__":{"a":"1","a":"2"}})", 0, "metadata key a appears twice"},
      {R"({"__metadata__":{},"__metadata__":{}})", 0, "__metadata__ appears twice"},
      {R"({"x":{}})", 0, "x lacks dtype"},
      {R"({"x":{"dtype":"F32","data_offsets":[0,4]}})", 4, "x lacks shape"},
      {R"({"x":{"dtype":"F32","shape":[1]}})", 4, "x lacks data_offsets"},
      {R"({"x":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4, "has dtype twice"},
      {R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"more":1}})", 4, "unknown key more"},
      {R"({"x":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}})", 1, "has dtype F4"},
      {R"({"x":{"dtype":4,"shape":[1],"data_offsets":[0,4]}})", 4, "a number as dtype"},
      {R"({"x":{"dtype":["F32"],"shape":[1],"data_offsets":[0,4]}})", 4, "an array"},
      {R"({"x":{"dtype":"F32","shape":"1","data_offsets":[0,4]}})", 4, "a string as shape"},
      {R"({"x":{"dtype":"F32","shape":{},"data_offsets":[0,4]}})", 4, "an object as shape"},
      {R"({"x":{"dtype":"F32","shape":[[1]],"data_offsets":[0,4]}})", 4, "an array in shape"},
      {R"({"x":{"dtype":"F32","shape":[null],"data_offsets":[0,4]}})", 4, "null in shape"},
      {R"({"x":{"dtype":"F32","shape":[true],"data_offsets":[0,4]}})", 4, "a boolean in shape"},
      {R"({"x":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4, "has -1 in shape"},
      {R"({"x":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})", 4, "has 1.0 in shape"},
      {R"({"x":{"dtype":"F32","shape":[1e999],"data_offsets":[0,4]}})", 4, "no JSON"},
      {R"({"x":{"dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,4]}})", 4, "more than 63 bits"},
      {R"({"x":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}})", 4, "63 bits"},
      {R"({"x":{"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0]}})", 0, "63 bits"},
      {R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", 4, "1 data_offsets"},
      {R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}})", 4, "more than 2 data_offsets"},
      {R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4, "lies at [4, 0)"},
      {R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4, "F32 [2] needs 8 bytes"},
      {R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 4, "the file has 4 bytes of tensors"},
      {R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 5, "end at 4; the file has 5"},
      {R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8, "ends at 0: a gap"},
      {R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"y":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
       8, "tensor y lies at [4, 8), the tensor before it ends at 8: they overlap"},
      {R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"x":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
       8, "key x appears twice"},
      {"{}", 1, "end at 0; the file has 1"},
  };
  for (const Malformed& malformed : cases) {
    const absl::Status status = OpenBytes(FileBytes(malformed.json, malformed.data_bytes));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << malformed.json << "\n" << status;
    EXPECT_NE(std::string(status.message()).find(malformed.expected), std::string::npos) << malformed.json << "\n"
                                                                                         << status;
  }
}

TEST_F(SafetensorsTest, DeepNestingIsRefusedNotFollowed) {
  EXPECT_EQ(OpenBytes(FileBytes(std::string(1 << 20, '['), 0)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(OpenBytes(FileBytes("{\"x\":{\"shape\":" + std::string(1 << 20, '['), 0)).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(SafetensorsTest, EveryTruncationOfAFileIsRefused) {
  const std::string whole = ReadBytes(kReference);
  for (size_t length = 0; length < whole.size(); ++length) {
    EXPECT_FALSE(OpenBytes(whole.substr(0, length)).ok()) << "the first " << length << " bytes";
  }
  EXPECT_TRUE(OpenBytes(whole).ok());
}

TEST_F(SafetensorsTest, IntegersComeFromIntegerTensorsWithOneAxisOnly) {
  const std::vector<int64_t> values = {0, 3};
  const auto data = std::as_bytes(std::span(values));
  EXPECT_EQ(ToIntegers({"x", DType::kI64, {2}, data}).value(), values);
  EXPECT_FALSE(ToIntegers({"x", DType::kI64, {1, 2}, data}).ok());
  EXPECT_FALSE(ToIntegers({"x", DType::kF64, {2}, data}).ok());
}

}  // namespace
}  // namespace flashbob::safetensors
