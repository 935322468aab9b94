// EmbeddedBackend: a Backend that computes in this process, on one device.
#ifndef FLASHBOB_CLIENT_CLI_EMBEDDED_BACKEND_H_
#define FLASHBOB_CLIENT_CLI_EMBEDDED_BACKEND_H_

#include <memory>
#include <string>

#include "client/cli/backend.h"

namespace flashbob::cli {

// `device`: "auto" (the first GPU; the CPU where there is none), "cpu" or "cuda:N". INVALID_ARGUMENT or NOT_FOUND,
// which say what there is, for others.
absl::StatusOr<std::unique_ptr<Backend>> MakeEmbeddedBackend(const std::string& device);

}  // namespace flashbob::cli

#endif  // FLASHBOB_CLIENT_CLI_EMBEDDED_BACKEND_H_
