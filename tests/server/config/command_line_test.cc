#include "server/config/command_line.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <initializer_list>
#include <vector>

#include "server/config/config_file.h"

namespace flashbob::server {
namespace {

CommandLine Parse(std::initializer_list<std::string> arguments) {
  std::vector<const char*> argv = {"flashbob-server"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  return ParseCommandLine(static_cast<int>(argv.size()), argv.data(), "1.2.3");
}

// The error of bad arguments, which must come with exit code 2.
std::string ErrorOf(std::initializer_list<std::string> arguments) {
  const CommandLine command_line = Parse(arguments);
  EXPECT_FALSE(command_line.options.has_value());
  EXPECT_EQ(command_line.exit_code, kExitBadConfiguration);
  return command_line.text;
}

std::string WriteFile(const std::string& text) {
  const std::string path = testing::TempDir() + "/server_" + std::to_string(getpid()) + "_" +
                           testing::UnitTest::GetInstance()->current_test_info()->name() + ".textproto";
  std::ofstream(path) << text;
  return path;
}

void ExpectContains(const std::string& text, std::initializer_list<std::string> parts) {
  for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
}

TEST(CommandLineTest, ListenersAreOnlyOpenToOthersWithTlsOrByName) {
  for (const char* address : {"127.0.0.1:1", "127.8.9.10:1", "localhost:1", "[::1]:1"}) {
    EXPECT_TRUE(Parse({"--listen", address}).options.has_value()) << address;
  }
  for (const char* address : {"0.0.0.0:1", "[::]:1", "10.0.0.1:1", "node:1", "127.0.0.1.example:1", "*:1"}) {
    ExpectContains(ErrorOf({"--listen", address}), {address, "--tls-certificate", "--allow-insecure"});
    EXPECT_TRUE(Parse({"--listen", address, "--allow-insecure"}).options.has_value()) << address;
    EXPECT_TRUE(Parse({"--listen", address, "--tls-certificate", "c", "--tls-key", "k"}).options.has_value());
  }
  const CommandLine only_unix = Parse({"--listen", "off", "--listen-unix", "/run/flashbob"});
  ASSERT_TRUE(only_unix.options.has_value()) << only_unix.text;
  EXPECT_EQ(only_unix.options->listen, "");
  ExpectContains(ErrorOf({"--listen", "off"}), {"listen_unix"});
  ExpectContains(ErrorOf({"--listen-unix", std::string(108, 'x')}), {"108", "107"});
  ExpectContains(ErrorOf({"--tls-certificate", "c"}), {"tls_certificate is \"c\"", "tls_key \"\""});
  ExpectContains(ErrorOf({"--tls-client-ca", "a"}), {"tls_client_ca is \"a\""});
  ExpectContains(ErrorOf({"--tls-certificate", "c", "--tls-key", "k", "--tls-client-certificates", "maybe"}),
                 {"\"maybe\"", "required or optional"});
}

TEST(CommandLineTest, DefaultsAreComplete) {
  const CommandLine command_line = Parse({});
  ASSERT_TRUE(command_line.options.has_value()) << command_line.text;
  EXPECT_EQ(command_line.options->listen, "127.0.0.1:50051");
  EXPECT_EQ(command_line.options->metrics_listen, "127.0.0.1:9464");
  EXPECT_EQ(command_line.options->devices, "auto");
  EXPECT_GT(command_line.options->host_memory_bytes, 0) << "half of what the machine has";
}

TEST(CommandLineTest, EveryFlagIsTaken) {
  const CommandLine command_line = Parse({"--listen",
                                          "[::1]:0",
                                          "--metrics-listen",
                                          "off",
                                          "--devices",
                                          "cuda:1,cuda:0",
                                          "--threads",
                                          "3",
                                          "--grpc-threads",
                                          "5",
                                          "--host-memory-bytes",
                                          "4GiB",
                                          "--max-queued-requests",
                                          "7",
                                          "--split-seconds",
                                          "inf",
                                          "--max-chunk-bytes",
                                          "2MiB",
                                          "--grace-seconds",
                                          "1.5",
                                          "--idle-upload-seconds",
                                          "2.5",
                                          "--port-file",
                                          "/tmp/p",
                                          "--log-level",
                                          "debug",
                                          "--log-format",
                                          "json"});
  ASSERT_TRUE(command_line.options.has_value()) << command_line.text;
  const ServerOptions& options = *command_line.options;
  EXPECT_EQ(options.listen, "[::1]:0");
  EXPECT_EQ(options.metrics_listen, "");
  EXPECT_EQ(options.devices, "cuda:1,cuda:0");
  EXPECT_EQ(options.threads, 3);
  EXPECT_EQ(options.grpc_threads, 5);
  EXPECT_EQ(options.host_memory_bytes, int64_t{4} << 30);
  EXPECT_EQ(options.max_queued_requests, 7);
  EXPECT_TRUE(std::isinf(options.split_seconds));
  EXPECT_EQ(options.max_chunk_bytes, 2 << 20);
  EXPECT_EQ(options.grace_seconds, 1.5);
  EXPECT_EQ(options.idle_upload_seconds, 2.5);
  EXPECT_EQ(options.port_file, "/tmp/p");
  EXPECT_EQ(options.log_level, LogLevel::kDebug);
  EXPECT_EQ(options.log_format, LogFormat::kJson);
}

TEST(CommandLineTest, FileSetsEverythingThatFlagsSetAndFlagsOverrideIt) {
  const std::string path = WriteFile(R"(
      listen: "127.0.0.1:1" metrics_listen: "off" threads: 3 host_memory_bytes: 8388608 max_queued_requests: 7
      grpc_threads: 2 max_chunk_bytes: 1048576 grace_seconds: 1.5 idle_upload_seconds: 2.5 port_file: "/tmp/p" log_level: "error"
      log_format: "json" split_seconds: 0)");
  const CommandLine command_line = Parse({"--config", path, "--threads", "4", "--listen", "127.0.0.1:2"});
  ASSERT_TRUE(command_line.options.has_value()) << command_line.text;
  const ServerOptions& options = *command_line.options;
  EXPECT_EQ(options.listen, "127.0.0.1:2");
  EXPECT_EQ(options.metrics_listen, "");
  EXPECT_EQ(options.threads, 4);
  EXPECT_EQ(options.grpc_threads, 2);
  EXPECT_EQ(options.host_memory_bytes, 8388608);
  EXPECT_EQ(options.max_queued_requests, 7);
  EXPECT_EQ(options.split_seconds, 0);
  EXPECT_EQ(options.max_chunk_bytes, 1048576);
  EXPECT_EQ(options.grace_seconds, 1.5);
  EXPECT_EQ(options.idle_upload_seconds, 2.5);
  EXPECT_EQ(options.port_file, "/tmp/p");
  EXPECT_EQ(options.log_level, LogLevel::kError);
  EXPECT_EQ(options.log_format, LogFormat::kJson);
}

TEST(CommandLineTest, HelpShowsExamplesAndExitsWithZero) {
  const CommandLine command_line = Parse({"--help"});
  EXPECT_EQ(command_line.exit_code, 0);
  ExpectContains(command_line.text, {"Examples:", "--host-memory-bytes", "Exit codes"});
}

TEST(CommandLineTest, VersionExitsWithZero) {
  const CommandLine command_line = Parse({"--version"});
  EXPECT_EQ(command_line.exit_code, 0);
  EXPECT_EQ(command_line.text, "flashbob-server 1.2.3\n");
}

TEST(CommandLineTest, BadFlagsAreNamedWithTheirValues) {
  ExpectContains(ErrorOf({"--no-such-flag"}), {"--no-such-flag"});
  ExpectContains(ErrorOf({"stray"}), {"stray"});
  ExpectContains(ErrorOf({"--threads", "many"}), {"--threads", "many"});
  ExpectContains(ErrorOf({"--threads", "-1"}), {"threads is -1", "4096"});
  ExpectContains(ErrorOf({"--grpc-threads", "1"}), {"grpc_threads is 1", "2", "16"});
  ExpectContains(ErrorOf({"--grpc-threads", "17"}), {"grpc_threads is 17", "2", "16"});
  ExpectContains(ErrorOf({"--grpc-threads", "-1"}), {"grpc_threads is -1", "2", "16"});
  ExpectContains(ErrorOf({"--listen", "here"}), {"listen", "\"here\"", "HOST:PORT"});
  ExpectContains(ErrorOf({"--listen", "::1:50051"}), {"listen", "brackets"});
  ExpectContains(ErrorOf({"--metrics-listen", "h:65536"}), {"metrics_listen", "65536"});
  ExpectContains(ErrorOf({"--host-memory-bytes", "4GB"}), {"host_memory_bytes", "\"4GB\"", "GiB"});
  ExpectContains(ErrorOf({"--host-memory-bytes", "9999999999GiB"}), {"host_memory_bytes", "63 bits"});
  ExpectContains(ErrorOf({"--host-memory-bytes", "1KiB"}), {"host_memory_bytes is 1024"});
  ExpectContains(ErrorOf({"--max-queued-requests", "0"}), {"max_queued_requests is 0"});
  ExpectContains(ErrorOf({"--split-seconds", "-1"}), {"split_seconds is -1"});
  ExpectContains(ErrorOf({"--config", testing::TempDir()}), {testing::TempDir(), "directory"});
  ExpectContains(ErrorOf({"--max-chunk-bytes", "512KiB"}), {"max_chunk_bytes is 524288", "1048576"});
  ExpectContains(ErrorOf({"--max-chunk-bytes", "2GiB"}), {"max_chunk_bytes is 2147483648"});
  ExpectContains(ErrorOf({"--grace-seconds", "-1"}), {"grace_seconds is -1"});
  ExpectContains(ErrorOf({"--grace-seconds", "nan"}), {"grace_seconds is nan"});
  ExpectContains(ErrorOf({"--idle-upload-seconds", "0"}), {"idle_upload_seconds is 0"});
  ExpectContains(ErrorOf({"--log-level", "loud"}), {"log_level", "\"loud\"", "warning"});
  ExpectContains(ErrorOf({"--log-format", "xml"}), {"log_format", "\"xml\"", "json"});
}

TEST(CommandLineTest, BadSyntaxInAFileIsNamedByLineAndColumn) {
  const std::string path = WriteFile("threads: 2\nmax_queued_requests: seven\n");
  ExpectContains(ErrorOf({"--config", path}), {path + ":2:22", "seven"});
}

TEST(CommandLineTest, UnknownSettingInAFileIsNamedByLineAndColumn) {
  const std::string path = WriteFile("threads: 2\n\n  thraeds: 3\n");
  ExpectContains(ErrorOf({"--config", path}), {path + ":3:", "thraeds"});
}

TEST(CommandLineTest, BadValueInAFileIsNamedByItsSetting) {
  ExpectContains(ErrorOf({"--config", WriteFile("max_queued_requests: -4")}), {"max_queued_requests is -4"});
  ExpectContains(ErrorOf({"--config", WriteFile("log_level: \"loud\"")}), {"log_level", "\"loud\""});
}

TEST(CommandLineTest, MissingFileIsNamed) {
  ExpectContains(ErrorOf({"--config", "/no/such/file"}), {"/no/such/file", "No such file"});
}

TEST(CommandLineTest, SizesAreWholeBytesOrBinaryUnits) {
  EXPECT_EQ(*ParseBytes("0"), 0);
  EXPECT_EQ(*ParseBytes("123B"), 123);
  EXPECT_EQ(*ParseBytes("3KiB"), 3 << 10);
  EXPECT_EQ(*ParseBytes("2TiB"), int64_t{2} << 40);
  for (const char* bad : {"", "GiB", "-1", "1.5GiB", "1 GiB", "0x10", "99999999999999999999"}) {
    EXPECT_FALSE(ParseBytes(bad).ok()) << bad;
  }
}

}  // namespace
}  // namespace flashbob::server
