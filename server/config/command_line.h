// The command line of flashbob-server.
#ifndef FLASHBOB_SERVER_CONFIG_COMMAND_LINE_H_
#define FLASHBOB_SERVER_CONFIG_COMMAND_LINE_H_

#include <optional>
#include <string>

#include "server/config/server_options.h"

namespace flashbob::server {

// Exit code of a server that its configuration keeps from starting.
inline constexpr int kExitBadConfiguration = 2;

// What a command line comes to: options to start with, or a text to print and a code to exit with.
struct CommandLine {
  std::optional<ServerOptions> options;
  int exit_code = 0;
  std::string text;
};

// Reads flags, and the file that --config names; flags override it. `version` is what --version prints.
CommandLine ParseCommandLine(int argc, const char* const* argv, const std::string& version);

}  // namespace flashbob::server

#endif  // FLASHBOB_SERVER_CONFIG_COMMAND_LINE_H_
