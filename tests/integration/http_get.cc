#include "tests/integration/http_get.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace flashbob::integration {

std::string HttpGet(int port, const std::string& path) {
  const int connection = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  std::string answer;
  if (connect(connection, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
    const std::string request = "GET " + path + " HTTP/1.0\r\nConnection: close\r\n\r\n";
    if (send(connection, request.data(), request.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(request.size())) {
      char bytes[4096];
      for (ssize_t got = 0; (got = recv(connection, bytes, sizeof(bytes), 0)) > 0;) {
        answer.append(bytes, static_cast<size_t>(got));
      }
    }
  }
  close(connection);
  return answer;
}

}  // namespace flashbob::integration
