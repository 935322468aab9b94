// Fuzzes the reader of safetensors files: the input is the file.
//
// Promises: what is refused is refused with a text that names the file and, shown, drives no terminal; of what is
// taken, the tensors cover the file's bytes once, each with the bytes that its type and shape need, aligned and
// unchanged; written again and read again it is the same.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli/printable.h"
#include "client/cli/safetensors.h"
#include "tests/fuzz/check.h"

namespace flashbob::fuzz {
namespace {

using safetensors::File;
using safetensors::Tensor;

// A file in memory, with a path, for the life of the process.
class MemoryFile {
 public:
  explicit MemoryFile(const char* name) : descriptor_(memfd_create(name, MFD_CLOEXEC)) {
    Check(descriptor_ >= 0, "the system has files in memory");
  }
  std::string path() const { return absl::StrCat("/proc/self/fd/", descriptor_); }
  void Fill(const uint8_t* data, size_t size) const {
    Check(ftruncate(descriptor_, 0) == 0 && pwrite(descriptor_, data, size, 0) == static_cast<ssize_t>(size),
          "the system writes files in memory");
  }

 private:
  const int descriptor_;
};

bool Same(const Tensor& a, const Tensor& b) {
  return a.name == b.name && a.dtype == b.dtype && a.shape == b.shape && a.data.size() == b.data.size() &&
         (a.data.empty() || std::memcmp(a.data.data(), b.data.data(), a.data.size()) == 0);
}

void CheckTensors(const File& file, const uint8_t* data, size_t size) {
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, data, sizeof(header_bytes));
  const uint8_t* next = data + sizeof(header_bytes) + header_bytes;
  for (const Tensor& tensor : file.tensors()) {
    const std::optional<uint64_t> bytes = safetensors::NumBytes(tensor.dtype, tensor.shape);
    Check(bytes == tensor.data.size(), "a tensor has the bytes that its type and shape need", tensor.name);
    Check(next + tensor.data.size() <= data + size, "a tensor lies in the file", tensor.name);
    Check(reinterpret_cast<uintptr_t>(tensor.data.data()) % File::kAlignment == 0, "a tensor is aligned", tensor.name);
    Check(tensor.data.empty() || std::memcmp(tensor.data.data(), next, tensor.data.size()) == 0,
          "a tensor has the file's bytes", tensor.name);
    next += tensor.data.size();
    Check(file.Find(tensor.name) == &tensor, "a tensor is found by its name", tensor.name);
    const auto integers = safetensors::ToIntegers(tensor);
    Check(!integers.ok() || static_cast<int64_t>(integers->size()) == tensor.shape[0], "every integer is read");
  }
  Check(next == data + size, "the tensors cover the file");
}

void CheckWrittenAgain(const File& file) {
  static const std::string path = absl::StrCat("/dev/shm/safetensors_fuzzer.", getpid());
  const absl::Status written = safetensors::Write(path, file.tensors(), file.metadata());
  Check(written.ok(), "what was read can be written", written.ToString());
  const absl::StatusOr<File> again = File::Open(path);
  unlink(path.c_str());
  Check(again.ok(), "what was written can be read", again.status().ToString());
  Check(again->metadata() == file.metadata() && again->tensors().size() == file.tensors().size(),
        "what was written is what was read");
  for (const Tensor& tensor : file.tensors()) {
    const Tensor* const same = again->Find(tensor.name);
    Check(same != nullptr && Same(tensor, *same), "a tensor is the same after writing and reading", tensor.name);
  }
}

// Shown to people, the error drives no terminal, and what was printable is as it was.
void CheckPrintable(const std::string& text) {
  const std::string shown = cli::Printable(text);
  Check(!IsPrintable(text) || shown == text, "a text that can be shown is shown as it is", shown);
  Check(cli::Printable(shown) == shown, "what is shown holds no control characters", shown);
  for (const char c : shown) Check((c < 0 || c >= 0x20) && c != 0x7f, "a terminal is not driven", shown);
}

void TestOne(const uint8_t* data, size_t size) {
  static const MemoryFile input("input");
  input.Fill(data, size);
  const absl::StatusOr<File> file = File::Open(input.path());
  if (!file.ok()) {
    const std::string text(file.status().message());
    Check(absl::IsInvalidArgument(file.status()), "a bad file is the caller's fault", file.status().ToString());
    Check(text.rfind(input.path(), 0) == 0, "an error names the file", text);
    CheckPrintable(text);
    return;
  }
  CheckTensors(*file, data, size);
  if (size % 4 == 0) CheckWrittenAgain(*file);  // much slower than reading
}

}  // namespace
}  // namespace flashbob::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  flashbob::fuzz::TestOne(data, size);
  return 0;
}

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

// Half of the time the length and the bytes of the tensors are made to fit the header, or nearly so: a byte more or
// less in it would otherwise end every try at once.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
  size = LLVMFuzzerMutate(data, size, max_size);
  const void* const end = size > 8 ? memrchr(data + 8, '}', size - 8) : nullptr;
  if (seed % 2 == 0 || end == nullptr) return size;
  const uint64_t header_bytes = static_cast<size_t>(static_cast<const uint8_t*>(end) - data) + 1 - 8;
  std::memcpy(data, &header_bytes, sizeof(header_bytes));
  // The largest number of the header is most often where the tensors end.
  uint64_t largest = 0;
  uint64_t number = 0;
  for (size_t i = 8; i < 8 + header_bytes; ++i) {
    number = data[i] >= '0' && data[i] <= '9' && number < max_size ? 10 * number + (data[i] - '0') : 0;
    largest = number > largest ? number : largest;
  }
  const size_t whole = 8 + header_bytes + largest;
  if (whole > max_size) return size;
  if (whole > size) std::memset(data + size, 'x', whole - size);
  return whole;
}
