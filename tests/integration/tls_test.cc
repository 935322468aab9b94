// Who is let in: certificates and tokens, as they are and as they change, against the real program.
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "tests/integration/http_get.h"
#include "tests/integration/server_process.h"
#include "tests/server/testing/certificates.h"
#include "tests/server/testing/compute_client.h"

namespace flashbob::integration {
namespace {

using server::CertificateAuthority;
using server::ComputeStream;
using server::Decode;
using server::ForwardSpec;
using server::PemPair;
using server::WireError;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr char kServerNames[] = "DNS:localhost,IP:127.0.0.1";

// sha256sum of "alpha-token" and "beta-token".
constexpr char kAlpha[] = "a336d9b1d8b8647875238537ca5087b0ea335afd2032936aecdffc3e4b13f720";
constexpr char kBeta[] = "863d63c0bd3a94bfca84ed2063a7355a226faff82ca50b90158bf183aa1a9e61";

// What a command prints, both streams.
std::string Shell(const std::string& command) {
  std::string output;
  FILE* const pipe = popen(("{ " + command + "; } 2>&1").c_str(), "r");
  char bytes[4096];
  for (size_t got = 0; (got = std::fread(bytes, 1, sizeof(bytes), pipe)) > 0;) output.append(bytes, got);
  pclose(pipe);
  return output;
}

bool Eventually(const std::function<bool()>& done) {
  const auto until = std::chrono::steady_clock::now() + seconds(20);
  while (!done()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(milliseconds(20));
  }
  return true;
}

struct Caller {
  std::string ca;            // that it trusts; empty: it speaks clear text
  PemPair certificate = {};  // its own, or none
  std::string token = {};    // or none
};

class TlsTest : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = (std::filesystem::temp_directory_path() / "flashbob-tls-XXXXXX").string();
    ASSERT_NE(mkdtemp(directory_.data()), nullptr);
    Write("ca.pem", authority_.pem());
    Write("clients.pem", clients_.pem());
    Install(authority_.Issue({.common_name = "server", .alternative_names = kServerNames}));
    Write("tenants.txt", std::string("tenants { name: \"alpha\" token_sha256: \"") + kAlpha +
                             "\" certificate_name: \"spiffe://team/alpha\" }\n" +
                             "tenants { name: \"beta\" token_sha256: \"" + kBeta +
                             "\" certificate_name: \"beta-client\" }\n");
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string File(const std::string& name) const { return directory_ + "/" + name; }
  // Into place at once, as renewals do.
  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(File(name + ".new")) << text;
    std::filesystem::rename(File(name + ".new"), File(name));
  }
  void Install(const PemPair& pair) const {
    Write("server.key", pair.key);
    Write("server.pem", pair.certificate);
  }

  ServerProcess Serve(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments = {"--tls-certificate", File("server.pem"), "--tls-key", File("server.key")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return ServerProcess::Serve(arguments);
  }
  ServerProcess ServeTenants(const std::string& certificates) const {
    return Serve({"--tenants-file", File("tenants.txt"), "--tls-client-ca", File("clients.pem"),
                  "--tls-client-certificates", certificates});
  }

  static std::unique_ptr<v1::AttentionService::Stub> Connect(const std::string& target, const Caller& caller) {
    std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials();
    if (!caller.ca.empty()) {
      credentials = grpc::SslCredentials({caller.ca, caller.certificate.key, caller.certificate.certificate});
    }
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return v1::AttentionService::NewStub(grpc::CreateCustomChannel(target, credentials, arguments));
  }
  static std::string Target(const ServerProcess& process) { return "127.0.0.1:" + std::to_string(process.port()); }

  // The name of the tenant that the server takes the caller for.
  static grpc::Status Ask(const std::string& target, const Caller& caller, std::string* tenant = nullptr) {
    const auto stub = Connect(target, caller);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + seconds(20));
    if (!caller.token.empty()) context.AddMetadata("authorization", "Bearer " + caller.token);
    v1::GetServerInfoResponse info;
    const grpc::Status status = stub->GetServerInfo(&context, {}, &info);
    if (tenant != nullptr) *tenant = info.tenant().name();
    return status;
  }
  static std::string TenantOf(const std::string& target, const Caller& caller) {
    std::string tenant;
    const grpc::Status status = Ask(target, caller, &tenant);
    return status.ok() ? tenant : status.error_message();
  }

  // Offers 4 MiB of tensors; what the call ends with.
  static WireError Offer(const std::string& target, const Caller& caller) {
    const auto stub = Connect(target, caller);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + seconds(20));
    if (!caller.token.empty()) context.AddMetadata("authorization", "Bearer " + caller.token);
    const auto stream = stub->Compute(&context);
    v1::ComputeRequest request;
    *request.mutable_spec() = ForwardSpec(1, 4096, 64);
    bool open = stream->Write(request);
    for (int chunk = 0; open && chunk < 4; ++chunk) {
      request.mutable_chunk()->set_byte_offset(chunk << 20);
      request.mutable_chunk()->set_data(std::string(1 << 20, 'x'));
      open = stream->Write(request);
    }
    stream->WritesDone();
    v1::ComputeResponse response;
    while (stream->Read(&response)) {
    }
    return Decode(stream->Finish());
  }

  // Whether nothing of any call is kept and no tensor byte was taken.
  static testing::AssertionResult NothingKept(const ServerProcess& process) {
    std::string page;
    const bool clean = Eventually([&] {
      page = HttpGet(process.metrics_port(), "/metrics");
      return page.find("flashbob_calls_in_flight 0\n") != std::string::npos;
    });
    if (!clean) return testing::AssertionFailure() << "calls are still in flight\n" << page;
    for (const char* line : {"flashbob_host_memory_reserved_bytes 0\n", "flashbob_host_memory_high_water_bytes 0\n",
                             "flashbob_received_bytes_total 0\n"}) {
      if (page.find(line) == std::string::npos) return testing::AssertionFailure() << "not " << line << page;
    }
    return testing::AssertionSuccess();
  }

  const CertificateAuthority authority_{"server authority"};
  const CertificateAuthority clients_{"client authority"};
  const CertificateAuthority stranger_{"stranger"};
  const PemPair alpha_ = clients_.Issue({.common_name = "whoever", .alternative_names = "URI:spiffe://team/alpha"});
  const PemPair beta_ = clients_.Issue({.common_name = "beta-client", .alternative_names = ""});
  std::string directory_;
};

TEST_F(TlsTest, OpensslSeesTheCertificateAndHttp2) {
  ServerProcess process = Serve();
  ASSERT_TRUE(process.serving()) << process.err();
  const std::string client =
      "openssl s_client -connect " + Target(process) + " -CAfile " + File("ca.pem") + " -alpn h2 </dev/null";
  const std::string seen = Shell(client + " -verify_return_error -verify_ip 127.0.0.1");
  for (const char* line : {"Verify return code: 0 (ok)", "ALPN protocol: h2", "CN = server"}) {
    EXPECT_NE(seen.find(line), std::string::npos) << line << " in\n" << seen;
  }
  const std::string old = Shell(client + " -tls1_1 -cipher ALL:@SECLEVEL=0");
  EXPECT_NE(old.find("Cipher is (NONE)"), std::string::npos) << "TLS 1.1 is too old\n" << old;
}

TEST_F(TlsTest, OpensslWithoutACertificateIsNotLetInWhereOneIsRequired) {
  ServerProcess process = ServeTenants("required");
  ASSERT_TRUE(process.serving()) << process.err();
  // Sends a whole HTTP/2 preface and waits: under TLS 1.3 a client finds out about the refusal only when it reads.
  const std::string client =
      "printf 'PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n\\0\\0\\0\\4\\0\\0\\0\\0\\0' | timeout 2 openssl "
      "s_client -connect " +
      Target(process) + " -CAfile " + File("ca.pem") + " -alpn h2 -ign_eof";
  const std::string refused = Shell(client);
  EXPECT_NE(refused.find("unexpected eof"), std::string::npos) << refused;
  Write("alpha.pem", alpha_.certificate);
  Write("alpha.key", alpha_.key);
  const std::string accepted = Shell(client + " -quiet -cert " + File("alpha.pem") + " -key " + File("alpha.key"));
  EXPECT_EQ(accepted.find("unexpected eof"), std::string::npos) << accepted;
}

TEST_F(TlsTest, ClearTextAndStrangersAreRefusedAndNothingIsKept) {
  ServerProcess process = ServeTenants("required");
  ASSERT_TRUE(process.serving()) << process.err();
  const std::string target = Target(process);
  const CertificateAuthority::Subject as_alpha = {.common_name = "alpha",
                                                  .alternative_names = "URI:spiffe://team/alpha"};
  CertificateAuthority::Subject expired = as_alpha;
  expired.valid_for = seconds(-60);
  const std::vector<std::pair<const char*, Caller>> refused = {
      {"clear text", {.ca = "", .token = "alpha-token"}},
      {"trusts another authority", {.ca = stranger_.pem(), .certificate = alpha_, .token = "alpha-token"}},
      {"no certificate", {.ca = authority_.pem(), .token = "alpha-token"}},
      {"another authority's certificate", {.ca = authority_.pem(), .certificate = stranger_.Issue(as_alpha)}},
      {"expired certificate", {.ca = authority_.pem(), .certificate = clients_.Issue(expired)}},
  };
  for (const auto& [what, caller] : refused) {
    EXPECT_EQ(Ask(target, caller).error_code(), grpc::StatusCode::UNAVAILABLE) << what;
    EXPECT_EQ(Offer(target, caller).code, grpc::StatusCode::UNAVAILABLE) << what;
  }
  EXPECT_TRUE(NothingKept(process));
  EXPECT_EQ(TenantOf(target, {.ca = authority_.pem(), .certificate = alpha_}), "alpha");
}

TEST_F(TlsTest, CertificateOrTokenNamesTheTenantAndBothMustAgree) {
  ServerProcess process = ServeTenants("optional");
  ASSERT_TRUE(process.serving()) << process.err();
  const std::string target = Target(process);
  const std::string ca = authority_.pem();
  EXPECT_EQ(TenantOf(target, {.ca = ca, .certificate = alpha_}), "alpha") << "by its URI";
  EXPECT_EQ(TenantOf(target, {.ca = ca, .certificate = beta_}), "beta") << "by its common name";
  EXPECT_EQ(TenantOf(target, {.ca = ca, .token = "beta-token"}), "beta");
  EXPECT_EQ(TenantOf(target, {.ca = ca, .certificate = alpha_, .token = "alpha-token"}), "alpha");
  const PemPair unknown = clients_.Issue({.common_name = "alpha", .alternative_names = "DNS:nobody"});
  EXPECT_EQ(TenantOf(target, {.ca = ca, .certificate = unknown, .token = "beta-token"}), "beta")
      << "a gateway's certificate";

  for (const auto& [what, caller] : std::vector<std::pair<const char*, Caller>>{
           {"neither", {.ca = ca}},
           {"a wrong token", {.ca = ca, .token = "guessed"}},
           {"a certificate that names nobody", {.ca = ca, .certificate = unknown}},
           {"a wrong token beside a good certificate", {.ca = ca, .certificate = alpha_, .token = "guessed"}},
           {"two tenants", {.ca = ca, .certificate = alpha_, .token = "beta-token"}}}) {
    EXPECT_EQ(Ask(target, caller).error_code(), grpc::StatusCode::UNAUTHENTICATED) << what;
    const WireError error = Offer(target, caller);
    EXPECT_EQ(error.code, grpc::StatusCode::UNAUTHENTICATED) << what << ": " << error.text;
    EXPECT_EQ(error.reason, "CREDENTIALS") << what;
    EXPECT_FALSE(error.retry_seconds.has_value()) << what;
  }
  EXPECT_TRUE(NothingKept(process));
}

TEST_F(TlsTest, RevokedTokenAndCertificateAreRefusedWithoutARestart) {
  ServerProcess process = ServeTenants("optional");
  ASSERT_TRUE(process.serving()) << process.err();
  const std::string target = Target(process);
  const Caller by_token = {.ca = authority_.pem(), .token = "alpha-token"};
  const Caller by_certificate = {.ca = authority_.pem(), .certificate = alpha_};
  ASSERT_EQ(TenantOf(target, by_token), "alpha");
  ASSERT_EQ(TenantOf(target, by_certificate), "alpha");

  Write("tenants.txt", "tenants { name: \"alpha\" token_sha256: \"oops\" }");
  EXPECT_TRUE(Eventually([&] { return process.err().find("tenants not read again") != std::string::npos; }));
  EXPECT_EQ(TenantOf(target, by_token), "alpha") << "a file with an error changes nothing";

  Write("tenants.txt", std::string("tenants { name: \"beta\" token_sha256: \"") + kBeta + "\" }");
  EXPECT_TRUE(Eventually([&] { return process.err().find("tenants read again") != std::string::npos; }));
  for (const Caller& caller : {by_token, by_certificate}) {
    EXPECT_EQ(Offer(target, caller).code, grpc::StatusCode::UNAUTHENTICATED);
  }
  EXPECT_TRUE(NothingKept(process));
  EXPECT_EQ(TenantOf(target, {.ca = authority_.pem(), .token = "beta-token"}), "beta");
}

TEST_F(TlsTest, RenewedCertificateIsUsedAndABrokenOneIsNot) {
  ServerProcess process = Serve();
  ASSERT_TRUE(process.serving()) << process.err();
  const std::string target = Target(process);
  const auto accepted_by = [&](const CertificateAuthority& authority) {
    return Ask(target, {.ca = authority.pem()}).ok();
  };
  ASSERT_TRUE(accepted_by(authority_));

  Write("server.key", stranger_.Issue({.common_name = "x", .alternative_names = ""}).key);
  EXPECT_TRUE(Eventually([&] { return process.err().find("certificates not read again") != std::string::npos; }));
  EXPECT_NE(process.err().find("is not the key of the certificate"), std::string::npos) << process.err();
  EXPECT_TRUE(accepted_by(authority_)) << "half a renewal locks nobody out";

  Install(stranger_.Issue({.common_name = "renewed", .alternative_names = kServerNames}));
  EXPECT_TRUE(Eventually([&] { return accepted_by(stranger_); })) << process.err();
  EXPECT_FALSE(accepted_by(authority_));
}

TEST_F(TlsTest, ExpiredCertificateAndForeignKeyDoNotEvenStart) {
  const auto cannot_start = [&](const std::string& why) {
    ServerProcess process =
        ServerProcess::Start({"--listen", "127.0.0.1:0", "--metrics-listen", "off", "--tls-certificate",
                              File("server.pem"), "--tls-key", File("server.key")});
    EXPECT_EQ(process.Wait(seconds(20)), std::optional<int>(1)) << why;
    EXPECT_NE(process.err().find(why), std::string::npos) << process.err();
  };
  Install(authority_.Issue(
      {.common_name = "server", .alternative_names = kServerNames, .valid_for = std::chrono::seconds(-60)}));
  cannot_start("has expired");
  Write("server.key", beta_.key);
  cannot_start("is not the key of the certificate");
  Write("server.key", "-----BEGIN RUBBISH-----");
  cannot_start("holds no private key");
}

TEST_F(TlsTest, CommandLineClientSpeaksTlsAndSaysWhyItCannot) {
  ServerProcess process = ServeTenants("required");
  ASSERT_TRUE(process.serving()) << process.err();
  Write("alpha.pem", alpha_.certificate);
  Write("alpha.key", alpha_.key);
  Write("stranger.pem", stranger_.pem());
  const std::string info = std::string(FLASHBOB_PROGRAM) + " info --server " + Target(process);
  const std::string own = " --tls-certificate " + File("alpha.pem") + " --tls-key " + File("alpha.key");
  const std::string answer = Shell(info + own + " --tls-ca " + File("ca.pem"));
  EXPECT_NE(answer.find("alpha"), std::string::npos) << answer;
  EXPECT_EQ(Shell("FLASHBOB_TLS_CA=" + File("ca.pem") + " " + info + own), answer);
  const std::string named = own + " --tls-ca " + File("ca.pem") + " --tls-server-name ";
  EXPECT_NE(Shell(info + named + "localhost").find("alpha"), std::string::npos);
  for (const std::string& wrong :
       {named + "example.org", own + " --tls-ca " + File("stranger.pem"), own + " --tls-ca " + File("none.pem"),
        " --tls-ca " + File("ca.pem") + " --tls-key " + File("alpha.key"), std::string()}) {
    const std::string refused = Shell(info + wrong + "; echo exit $?");
    EXPECT_EQ(refused.find("exit 0"), std::string::npos) << wrong << "\n" << refused;
    EXPECT_EQ(refused.find("alpha\n"), std::string::npos) << wrong << "\n" << refused;
  }
}

TEST_F(TlsTest, ClearTextToOtherMachinesMustBeAskedForByName) {
  ServerProcess refused = ServerProcess::Start({"--listen", "0.0.0.0:0", "--metrics-listen", "off"});
  EXPECT_EQ(refused.Wait(seconds(20)), std::optional<int>(2));
  for (const char* part : {"0.0.0.0:0", "--tls-certificate", "--allow-insecure"}) {
    EXPECT_NE(refused.err().find(part), std::string::npos) << refused.err();
  }
  ServerProcess allowed =
      ServerProcess::Start({"--listen", "0.0.0.0:0", "--metrics-listen", "off", "--allow-insecure"});
  EXPECT_TRUE(Eventually([&] { return allowed.err().find("serving") != std::string::npos; })) << allowed.err();
  EXPECT_NE(allowed.err().find("warning other machines reach this server in clear text"), std::string::npos)
      << allowed.err();
}

TEST_F(TlsTest, UnixSocketServesBesideThePortAndAsksForTokensToo) {
  ServerProcess process =
      ServerProcess::Serve({"--listen-unix", File("socket"), "--tenants-file", File("tenants.txt")});
  ASSERT_TRUE(process.serving()) << process.err();
  const std::string target = "unix:" + File("socket");
  EXPECT_EQ(Ask(target, {}).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(TenantOf(target, {.ca = "", .token = "alpha-token"}), "alpha");
  EXPECT_EQ(TenantOf(Target(process), {.ca = "", .token = "alpha-token"}), "alpha");
  process.Signal(SIGTERM);
  EXPECT_EQ(process.Wait(seconds(20)), std::optional<int>(0));
  EXPECT_FALSE(std::filesystem::exists(File("socket"))) << "it is left behind";
}

}  // namespace
}  // namespace flashbob::integration
