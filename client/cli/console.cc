#include "client/cli/console.h"

#include <ostream>

#include "client/cli/exit_code.h"
#include "client/cli/printable.h"
#include "flashbob/errors.h"

namespace flashbob::cli {
namespace {

// Texts may hold bytes of files: what is not UTF-8 is replaced, never thrown at.
std::string Dump(const Json& object) { return object.dump(-1, ' ', false, Json::error_handler_t::replace); }

}  // namespace

void Console::Print(const Json& object, const std::string& text) {
  if (json_) {
    out_ << Dump(object) << std::endl;
  } else {
    out_ << Printable(text, true) << std::flush;
  }
}

void Console::Note(const std::string& text) { err_ << "flashbob: " << Printable(text) << std::endl; }

int Console::Fail(int exit_code, const absl::Status& error) {
  const std::string message(error.message());
  const std::string reason = client::ReasonOf(error);
  const std::string code = absl::StatusCodeToString(error.code());
  if (json_) {
    Json details = {{"code", code}, {"message", message}};
    if (!reason.empty()) details["reason"] = reason;
    out_ << Dump({{"error", details}}) << std::endl;
  } else {
    Note((reason.empty() ? code : code + " " + reason) + ": " + message);
    if (exit_code == kUnreachable) Note("is flashbob-server running there? --embedded computes without one");
  }
  return exit_code;
}

}  // namespace flashbob::cli
