#include "tests/client/resetting_peer.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "flashbob/v1/attention_service.pb.h"

namespace flashbob::client {
namespace {

// RFC 9113.
enum FrameType : uint8_t { kData = 0, kHeaders = 1, kResetStream = 3, kSettings = 4, kPing = 6, kWindowUpdate = 8 };
constexpr uint8_t kAck = 1;
constexpr uint8_t kEndStream = 1;
constexpr uint8_t kEndHeaders = 4;
constexpr size_t kPrefaceBytes = 24;
constexpr uint32_t kWindowBytes = 16 << 20;
constexpr uint32_t kProtocolError = 1;
const std::string kConnection(4, '\0');  // the stream that frames of the connection name

std::string BigEndian(uint32_t value, int bytes = 4) {
  std::string text;
  for (int i = bytes - 1; i >= 0; --i) text += static_cast<char>(value >> (8 * i));
  return text;
}

// A header field that is not indexed (RFC 7541, 6.2.2).
std::string Field(const std::string& name, const std::string& value) {
  return absl::StrCat(BigEndian(0, 1), BigEndian(static_cast<uint32_t>(name.size()), 1), name,
                      BigEndian(static_cast<uint32_t>(value.size()), 1), value);
}

void Send(int socket, FrameType type, uint8_t flags, const std::string& stream, const std::string& payload) {
  const std::string frame = absl::StrCat(BigEndian(static_cast<uint32_t>(payload.size()), 3), BigEndian(type, 1),
                                         BigEndian(flags, 1), stream, payload);
  send(socket, frame.data(), frame.size(), MSG_NOSIGNAL);
}

// Fewer bytes at the end of the connection.
std::string Receive(int socket, size_t bytes) {
  std::string text(bytes, '\0');
  const ssize_t got = bytes == 0 ? 0 : recv(socket, text.data(), bytes, MSG_WAITALL);
  text.resize(got > 0 ? static_cast<size_t>(got) : 0);
  return text;
}

}  // namespace

ResettingPeer::ResettingPeer(int resets, std::string handle) : handle_(std::move(handle)), resets_left_(resets) {
  listener_ = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  bind(listener_, reinterpret_cast<sockaddr*>(&address), size);
  listen(listener_, 1);
  getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
  port_ = ntohs(address.sin_port);
  thread_ = std::thread([this] {
    const int client = accept(listener_, nullptr, nullptr);
    if (client < 0) return;
    {
      MutexLock lock(mutex_);
      socket_ = client;
    }
    Serve(client);
  });
}

ResettingPeer::~ResettingPeer() {
  shutdown(listener_, SHUT_RDWR);
  {
    MutexLock lock(mutex_);
    if (socket_ >= 0) shutdown(socket_, SHUT_RDWR);
  }
  thread_.join();
  close(listener_);
  MutexLock lock(mutex_);
  if (socket_ >= 0) close(socket_);
}

std::string ResettingPeer::address() const { return "127.0.0.1:" + std::to_string(port_); }

int ResettingPeer::streams() const {
  MutexLock lock(mutex_);
  return streams_;
}

int ResettingPeer::empty_ends() const {
  MutexLock lock(mutex_);
  return empty_ends_;
}

void ResettingPeer::Serve(int socket) {
  constexpr uint32_t kInitialWindowSize = 4;
  Send(socket, kSettings, 0, kConnection, absl::StrCat(BigEndian(kInitialWindowSize, 2), BigEndian(kWindowBytes)));
  Send(socket, kWindowUpdate, 0, kConnection, BigEndian(kWindowBytes));
  if (Receive(socket, kPrefaceBytes).size() < kPrefaceBytes) return;
  while (true) {
    const std::string header = Receive(socket, 9);
    if (header.size() < 9) return;
    size_t size = 0;
    for (int i = 0; i < 3; ++i) size = size << 8 | static_cast<uint8_t>(header[static_cast<size_t>(i)]);
    const auto type = static_cast<uint8_t>(header[3]);
    const auto flags = static_cast<uint8_t>(header[4]);
    const std::string payload = Receive(socket, size);
    if (payload.size() < size) return;
    if (type == kSettings && (flags & kAck) == 0) Send(socket, kSettings, kAck, kConnection, "");
    if (type == kPing && (flags & kAck) == 0) Send(socket, kPing, kAck, kConnection, payload);
    if (type == kData && (flags & kEndStream) != 0) EndOfUpload(socket, header.substr(5), size);
  }
}

void ResettingPeer::EndOfUpload(int socket, const std::string& stream, size_t bytes) {
  MutexLock lock(mutex_);
  ++streams_;
  if (bytes == 0) ++empty_ends_;
  if (resets_left_ > 0) {
    --resets_left_;
    Send(socket, kResetStream, 0, stream, BigEndian(kProtocolError));
    return;
  }
  v1::PutTensorsResponse response;
  response.add_handles(handle_);
  const std::string message = response.SerializeAsString();
  const std::string status_200 = "\x88";  // of HPACK's static table
  Send(socket, kHeaders, kEndHeaders, stream, absl::StrCat(status_200, Field("content-type", "application/grpc")));
  Send(socket, kData, 0, stream,
       absl::StrCat(BigEndian(0, 1), BigEndian(static_cast<uint32_t>(message.size())), message));
  Send(socket, kHeaders, kEndHeaders | kEndStream, stream, Field("grpc-status", "0"));
}

}  // namespace flashbob::client
