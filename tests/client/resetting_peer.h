// ResettingPeer: a server of PutTensors at the level of HTTP/2 frames, which resets its first streams (RST_STREAM) and
// answers those after them.
//
// Thread safety: construct and destroy on one thread; all else from any.
#ifndef FLASHBOB_TESTS_CLIENT_RESETTING_PEER_H_
#define FLASHBOB_TESTS_CLIENT_RESETTING_PEER_H_

#include <cstdint>
#include <string>
#include <thread>

#include "kernels/base/mutex.h"

namespace flashbob::client {

class ResettingPeer {
 public:
  // Listens on a free port of 127.0.0.1 for one connection. So many streams are reset, with PROTOCOL_ERROR, once their
  // client's side has ended; each later one is answered with this handle.
  ResettingPeer(int resets, std::string handle);
  ~ResettingPeer();

  std::string address() const;
  // Whose client's side has ended.
  int streams() const;
  // Of these, where the end came in a DATA frame of its own.
  int empty_ends() const;

 private:
  void Serve(int socket);
  void EndOfUpload(int socket, const std::string& stream, size_t bytes);

  const std::string handle_;
  int listener_ = -1;
  int port_ = 0;
  mutable Mutex mutex_;
  int resets_left_ FLASHBOB_GUARDED_BY(mutex_);
  int streams_ FLASHBOB_GUARDED_BY(mutex_) = 0;
  int empty_ends_ FLASHBOB_GUARDED_BY(mutex_) = 0;
  int socket_ FLASHBOB_GUARDED_BY(mutex_) = -1;
  std::thread thread_;
};

}  // namespace flashbob::client

#endif  // FLASHBOB_TESTS_CLIENT_RESETTING_PEER_H_
