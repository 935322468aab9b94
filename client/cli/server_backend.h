// ServerBackend: a Backend that asks a FlashBoB server.
#ifndef FLASHBOB_CLIENT_CLI_SERVER_BACKEND_H_
#define FLASHBOB_CLIENT_CLI_SERVER_BACKEND_H_

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "client/cli/backend.h"
#include "flashbob/client.h"

namespace flashbob::cli {

// UNAVAILABLE where no server is there. An empty token is none.
absl::StatusOr<std::unique_ptr<Backend>> ConnectToServer(const std::string& server,
                                                         const std::optional<client::TlsOptions>& tls,
                                                         const std::string& token,
                                                         std::optional<std::chrono::nanoseconds> timeout);

}  // namespace flashbob::cli

#endif  // FLASHBOB_CLIENT_CLI_SERVER_BACKEND_H_
