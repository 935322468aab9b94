// Console: where a command's results and errors go.
//
// With --json, standard output gets one JSON object and nothing else: the result, or {"error": ...}. Without, results
// are text for people and errors go to standard error; what files and servers put into them drives no terminal. One
// thread at a time.
#ifndef FLASHBOB_CLIENT_CLI_CONSOLE_H_
#define FLASHBOB_CLIENT_CLI_CONSOLE_H_

#include <iosfwd>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/status.h"

namespace flashbob::cli {

using Json = nlohmann::ordered_json;

class Console {
 public:
  Console(std::ostream& out, std::ostream& err, bool json) : out_(out), err_(err), json_(json) {}

  // The result: the object or the text, whichever is asked for.
  void Print(const Json& object, const std::string& text);
  // Something to know that is no result: to standard error.
  void Note(const std::string& text);
  // Tells of an error and returns the exit code.
  int Fail(int exit_code, const absl::Status& error);

  bool json() const { return json_; }

 private:
  std::ostream& out_;
  std::ostream& err_;
  const bool json_;
};

}  // namespace flashbob::cli

#endif  // FLASHBOB_CLIENT_CLI_CONSOLE_H_
