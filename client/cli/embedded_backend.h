// EmbeddedBackend: a Backend that computes in this process, on the CPU engine.
#ifndef FLASHBOB_CLIENT_CLI_EMBEDDED_BACKEND_H_
#define FLASHBOB_CLIENT_CLI_EMBEDDED_BACKEND_H_

#include <memory>

#include "client/cli/backend.h"

namespace flashbob::cli {

std::unique_ptr<Backend> MakeEmbeddedBackend();

}  // namespace flashbob::cli

#endif  // FLASHBOB_CLIENT_CLI_EMBEDDED_BACKEND_H_
