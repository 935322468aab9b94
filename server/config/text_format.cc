#include "server/config/text_format.h"

#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"

namespace flashbob::server {
namespace {

class Errors final : public google::protobuf::io::ErrorCollector {
 public:
  explicit Errors(std::string name) : name_(std::move(name)) {}
  void AddError(int line, int column, const std::string& message) override {
    absl::StrAppend(&text_, text_.empty() ? "" : "\n", name_, ":", line + 1, ":", column + 1, ": ", message);
  }
  const std::string& text() const { return text_; }

 private:
  const std::string name_;
  std::string text_;
};

}  // namespace

absl::StatusOr<std::string> ReadTextFile(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    return absl::InvalidArgumentError(absl::StrCat("cannot read ", path, ": it is a directory"));
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::InvalidArgumentError(absl::StrCat("cannot read ", path, ": ", std::strerror(errno)));
  return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

absl::Status ParseTextFormat(const std::string& name, const std::string& text, google::protobuf::Message& message) {
  Errors errors(name);
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&errors);
  if (!parser.ParseFromString(text, &message)) return absl::InvalidArgumentError(errors.text());
  return absl::OkStatus();
}

}  // namespace flashbob::server
