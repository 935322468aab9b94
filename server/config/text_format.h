// Reading a message in Protocol Buffers' text format, with errors that say where.
#ifndef FLASHBOB_SERVER_CONFIG_TEXT_FORMAT_H_
#define FLASHBOB_SERVER_CONFIG_TEXT_FORMAT_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace google::protobuf {
class Message;
}

namespace flashbob::server {

// The whole of a file; INVALID_ARGUMENT with its path where it cannot be read.
absl::StatusOr<std::string> ReadTextFile(const std::string& path);

// INVALID_ARGUMENT with one "NAME:LINE:COLUMN: text" a line, both counted from 1.
absl::Status ParseTextFormat(const std::string& name, const std::string& text, google::protobuf::Message& message);

}  // namespace flashbob::server

#endif  // FLASHBOB_SERVER_CONFIG_TEXT_FORMAT_H_
