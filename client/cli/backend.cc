#include "client/cli/backend.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "client/cli/embedded_backend.h"
#include "client/cli/server_backend.h"

namespace flashbob::cli {
namespace {

constexpr char kDefaultServer[] = "127.0.0.1:50051";
constexpr char kServerVariable[] = "FLASHBOB_SERVER";
constexpr char kTokenVariable[] = "FLASHBOB_TOKEN";
constexpr char kTlsCaVariable[] = "FLASHBOB_TLS_CA";

// Empty where it is not set.
std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string ServerOf(const BackendFlags& flags) {
  if (flags.server.has_value()) return *flags.server;
  const std::string variable = Variable(kServerVariable);
  return variable.empty() ? kDefaultServer : variable;
}

std::optional<client::TlsOptions> TlsOf(const BackendFlags& flags) {
  client::TlsOptions tls;
  tls.ca_file = flags.tls_ca.value_or(Variable(kTlsCaVariable));
  tls.certificate_file = flags.tls_certificate.value_or("");
  tls.key_file = flags.tls_key.value_or("");
  tls.server_name = flags.tls_server_name.value_or("");
  const bool wanted = flags.tls || !tls.ca_file.empty() || !tls.certificate_file.empty() || !tls.server_name.empty();
  if (!wanted) return std::nullopt;
  return tls;
}

}  // namespace

void AddBackendFlags(CLI::App& command, BackendFlags& flags) {
  CLI::Option* server = command
                            .add_option("--server", flags.server,
                                        absl::StrCat("The server [$", kServerVariable, ", else ", kDefaultServer, "]"))
                            ->check([](const std::string& address) {
                              return address.empty() ? std::string("is empty; it must be HOST:PORT") : std::string();
                            })
                            ->type_name("HOST:PORT");
  command.add_flag("--tls", flags.tls, "Speak TLS, trusting the system's authorities; implied by the next ones");
  command
      .add_option("--tls-ca", flags.tls_ca,
                  absl::StrCat("Trust the server by these authorities, PEM [$", kTlsCaVariable, "]"))
      ->type_name("FILE");
  CLI::Option* certificate =
      command.add_option("--tls-certificate", flags.tls_certificate, "The client's own certificate chain, PEM")
          ->type_name("FILE");
  CLI::Option* key = command.add_option("--tls-key", flags.tls_key, "Its private key, PEM")->type_name("FILE");
  certificate->needs(key);
  key->needs(certificate);
  command.add_option("--tls-server-name", flags.tls_server_name, "The name in the server's certificate [the host]")
      ->type_name("NAME");
  CLI::Option* embedded =
      command.add_flag("--embedded", flags.embedded, "Compute in this process, with no server")->excludes(server);
  command
      .add_option("--device", flags.device,
                  "With --embedded: cpu, cuda:N, or auto, the first GPU where there is one [auto]")
      ->needs(embedded)
      ->type_name("DEVICE");
  command.add_option("--timeout", flags.timeout_seconds, "Give a call up after so many seconds [3600]")
      ->check(CLI::PositiveNumber)
      ->type_name("SECONDS");
  command.add_flag("--json", flags.json, "Print one JSON object and nothing else");
}

absl::StatusOr<std::unique_ptr<Backend>> OpenBackend(const BackendFlags& flags) {
  std::optional<std::chrono::nanoseconds> timeout;
  if (flags.timeout_seconds.has_value()) {
    constexpr double kLongest = 31536000;  // a year: fits in nanoseconds
    const double seconds = std::min(*flags.timeout_seconds, kLongest);
    timeout = std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9));
  }
  if (flags.embedded) return MakeEmbeddedBackend(flags.device);
  return ConnectToServer(ServerOf(flags), TlsOf(flags), Variable(kTokenVariable), timeout);
}

}  // namespace flashbob::cli
