#include "server/http/http_server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <vector>

namespace flashbob::server {
namespace {

// A connection to a server on this machine.
class Client {
 public:
  explicit Client(int port) : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port));
    connected_ = connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  }
  Client(Client&& other) noexcept : socket_(std::exchange(other.socket_, -1)), connected_(other.connected_) {}
  ~Client() {
    if (socket_ >= 0) close(socket_);
  }
  void Send(const std::string& bytes) const { send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  // All that comes until the server closes.
  std::string Receive() const {
    std::string answer;
    char bytes[4096];
    for (ssize_t got = 0; (got = recv(socket_, bytes, sizeof(bytes), 0)) > 0;) {
      answer.append(bytes, static_cast<size_t>(got));
    }
    return answer;
  }
  std::string Ask(const std::string& bytes) const {
    Send(bytes);
    return Receive();
  }
  bool connected() const { return connected_; }

 private:
  int socket_;
  bool connected_ = false;
};

std::unique_ptr<HttpServer> Serve(size_t body_bytes = 5) {
  auto server = HttpServer::Start("127.0.0.1:0", [body_bytes](std::string_view path) {
    HttpResponse response;
    if (path != "/page") response.code = 404;
    response.body = std::string(path) + std::string(body_bytes, 'x');
    return response;
  });
  return *std::move(server);
}

TEST(HttpServerTest, ServesPagesAndNothingElse) {
  const auto server = Serve();
  const auto ask = [&](const std::string& head) { return Client(server->port()).Ask(head); };
  const std::string page = ask("GET /page?query HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(page.rfind("HTTP/1.1 200 OK\r\n", 0), 0u) << page;
  EXPECT_NE(page.find("\r\nContent-Length: 10\r\n"), std::string::npos) << page;
  EXPECT_EQ(page.substr(page.find("\r\n\r\n")), "\r\n\r\n/pagexxxxx");
  EXPECT_NE(page.find("default-src 'none'"), std::string::npos) << "no page may run a script";
  const std::string head = ask("HEAD /page HTTP/1.0\r\n\r\n");
  EXPECT_NE(head.find("\r\nContent-Length: 10\r\n"), std::string::npos) << head;
  EXPECT_EQ(head.substr(head.find("\r\n\r\n")), "\r\n\r\n");
  EXPECT_EQ(ask("GET /other HTTP/1.1\r\n\r\n").rfind("HTTP/1.1 404 ", 0), 0u);
  EXPECT_EQ(ask("POST /page HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc").rfind("HTTP/1.1 405 ", 0), 0u);
  for (const char* rubbish : {"\r\n\r\n", "GET\r\n\r\n", "GET /page\r\n\r\n", "GET /page HTTP/2.0\r\n\r\n",
                              "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "\x16\x03\x01\r\n\r\n"}) {
    EXPECT_EQ(ask(rubbish).rfind("HTTP/1.1 400 ", 0), 0u) << rubbish;
  }
}

TEST(HttpServerTest, RequestThatNeverEndsIsRefusedAtItsLimit) {
  const auto server = Serve();
  const Client client(server->port());
  client.Send("GET /page HTTP/1.1\r\n" + std::string(kMaxHttpRequestBytes, 'a'));
  EXPECT_EQ(client.Receive().rfind("HTTP/1.1 431 ", 0), 0u);
}

TEST(HttpServerTest, LargePageArrivesWhole) {
  const auto server = Serve(20 << 20);
  const std::string page = Client(server->port()).Ask("GET /page HTTP/1.1\r\n\r\n");
  EXPECT_EQ(page.size() - page.find("\r\n\r\n"), 4u + 5 + (20 << 20));
}

TEST(HttpServerTest, ConnectionsThatSayNothingKeepNobodyOut) {
  const auto server = Serve();
  std::vector<Client> silent;
  for (size_t i = 0; i < HttpServer::kMaxConnections + 20; ++i) {
    silent.emplace_back(server->port());
    ASSERT_TRUE(silent.back().connected()) << i;
    if (i % 2 == 0) silent.back().Send("GET /pa");
  }
  EXPECT_NE(Client(server->port()).Ask("GET /page HTTP/1.1\r\n\r\n").find(" 200 "), std::string::npos);
  EXPECT_EQ(silent.front().Receive(), "") << "the oldest was let go";
}

TEST(HttpServerTest, StopsAtOnceWithConnectionsOpen) {
  auto server = Serve();
  const Client silent(server->port());
  Client(server->port()).Ask("GET /page HTTP/1.1\r\n\r\n");
  const auto began = std::chrono::steady_clock::now();
  server.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::milliseconds(500));
  EXPECT_EQ(silent.Receive(), "");
}

TEST(HttpServerTest, PortThatIsTakenIsAnErrorThatNamesIt) {
  const auto first = Serve();
  const std::string taken = "127.0.0.1:" + std::to_string(first->port());
  const auto second = HttpServer::Start(taken, [](std::string_view) { return HttpResponse(); });
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(second.status().message().find(taken), std::string::npos) << second.status();
}

}  // namespace
}  // namespace flashbob::server
