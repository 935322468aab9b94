// Runs the `flashbob` program for tests.
#ifndef FLASHBOB_TESTS_CLIENT_PROGRAM_H_
#define FLASHBOB_TESTS_CLIENT_PROGRAM_H_

#include <map>
#include <string>
#include <vector>

namespace flashbob::cli {

struct ProgramResult {
  int exit_code = -1;  // -1 where a signal ended it
  std::string out;
  std::string err;
};

// Runs it with these arguments and variables added to the environment, standard output and error in pipes; standard
// output is `out_file` where one is given.
ProgramResult RunProgram(const std::vector<std::string>& arguments,
                         const std::map<std::string, std::string>& environment = {}, const char* out_file = nullptr);

// The same on a terminal: what it shows, both streams in one, is `out`.
ProgramResult RunProgramOnTerminal(const std::vector<std::string>& arguments);

}  // namespace flashbob::cli

#endif  // FLASHBOB_TESTS_CLIENT_PROGRAM_H_
