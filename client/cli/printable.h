// Printable: texts that files and servers bring, made safe for a terminal.
#ifndef FLASHBOB_CLIENT_CLI_PRINTABLE_H_
#define FLASHBOB_CLIENT_CLI_PRINTABLE_H_

#include <string>
#include <string_view>

namespace flashbob::cli {

// The text with control characters (but for newlines, where `lines` is true) and bytes that are no UTF-8 written as
// "\x1b": a terminal obeys none of it.
std::string Printable(std::string_view text, bool lines = false);

}  // namespace flashbob::cli

#endif  // FLASHBOB_CLIENT_CLI_PRINTABLE_H_
