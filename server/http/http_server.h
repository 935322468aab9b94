// HttpServer: a small HTTP/1.1 server for pages that are made in memory: metrics, health, status.
//
// One thread, one request a connection, GET and HEAD alone. What a peer can make it hold is bounded: so many
// connections, so many bytes of a request, so long for one; where there are too many connections the oldest goes.
#ifndef FLASHBOB_SERVER_HTTP_HTTP_SERVER_H_
#define FLASHBOB_SERVER_HTTP_HTTP_SERVER_H_

#include <list>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "server/base/clock.h"
#include "server/http/http_answer.h"

namespace flashbob::server {

// Thread safety: construct and destroy on one thread.
class HttpServer {
 public:
  static constexpr size_t kMaxConnections = 64;
  static constexpr Duration kMaxTime = std::chrono::seconds(5);  // from its connection to the end of its answer

  // `address` is HOST:PORT; port 0 takes a free one. UNAVAILABLE where it cannot be had. `handler` is called on the
  // server's thread and should be quick.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const std::string& address, HttpHandler handler);
  // Cuts connections that are open.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const { return port_; }

 private:
  struct Connection {
    int socket;
    TimePoint until;
    std::string request;  // until it is answered
    std::string answer;   // what is left of it to send
    bool answered = false;
  };

  HttpServer(int listener, int wake, int port, HttpHandler handler);
  void Run();
  void Accept();
  // Reads or writes what it can; false once the connection is done with.
  bool Continue(Connection& connection);

  const int listener_;
  const int wake_;  // readable once the server is to stop
  const int port_;
  const HttpHandler handler_;
  std::list<Connection> connections_;  // the thread's, oldest first
  std::thread thread_;
};

}  // namespace flashbob::server

#endif  // FLASHBOB_SERVER_HTTP_HTTP_SERVER_H_
