// TlsFiles: the server's certificate and key and the authorities of its clients, from files that may change.
//
// gRPC watches files by itself, but drops a good certificate for a broken one: after half a renewal nobody could
// connect. So it watches copies in memory (memfd), which change only to what was checked: the certificate and its key
// belong together and are not expired. Connections that are open stay as they are.
#ifndef FLASHBOB_SERVER_AUTH_TLS_FILES_H_
#define FLASHBOB_SERVER_AUTH_TLS_FILES_H_

#include <grpcpp/security/server_credentials.h>

#include <chrono>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/base/mutex.h"

namespace flashbob::server {

struct TlsPaths {
  std::string certificate;  // PEM, the chain from the server's own
  std::string key;          // PEM, not encrypted
  std::string client_ca;    // PEM, authorities; empty: clients are asked for no certificate
};

// A file that lives in memory and has a path in this process. Move-only.
class MemoryFile {
 public:
  // INTERNAL where the system gives none.
  static absl::StatusOr<MemoryFile> Create(const std::string& contents);
  MemoryFile(MemoryFile&& other) noexcept;
  MemoryFile& operator=(MemoryFile&&) = delete;
  ~MemoryFile();

  std::string path() const;
  // At one instant: whoever opens the path reads the old contents or the new.
  absl::Status Replace(const std::string& contents);

 private:
  explicit MemoryFile(int descriptor) : descriptor_(descriptor) {}
  int descriptor_;
};

// Thread safety: any thread.
class TlsFiles {
 public:
  // INVALID_ARGUMENT, with the file's name, where one cannot be read or used.
  static absl::StatusOr<std::unique_ptr<TlsFiles>> Load(const TlsPaths& paths);

  // For a listening port; handshakes use the files' latest good contents. A client certificate, where there are
  // authorities, may be left out unless it is required; one that is shown is always checked. This object must outlive
  // the server that uses them.
  std::shared_ptr<grpc::ServerCredentials> Credentials(bool require_client_certificate) const;

  // Looks at the files again: true where they had changed and are taken over, within a second from then. An error is
  // given once a change; then the earlier contents stay in use.
  absl::StatusOr<bool> Reload();

  // When the server's certificate expires.
  std::chrono::system_clock::time_point expiry() const;

 private:
  struct Contents {
    std::string certificate;
    std::string key;
    std::string client_ca;
    std::string error;  // where a file cannot be read: the reason, and the rest is empty
    bool operator==(const Contents&) const = default;
    // Certificate and key in one.
    std::string Identity() const { return key + "\n" + certificate; }
  };
  TlsFiles(TlsPaths paths, Contents contents, std::chrono::system_clock::time_point expiry, MemoryFile identity,
           MemoryFile client_ca);
  static Contents Read(const TlsPaths& paths);
  // When it expires; INVALID_ARGUMENT where something is wrong.
  static absl::StatusOr<std::chrono::system_clock::time_point> Check(const TlsPaths& paths, const Contents& contents);

  const TlsPaths paths_;
  mutable Mutex mutex_;
  Contents seen_ FLASHBOB_GUARDED_BY(mutex_);  // the last ones, good or bad
  std::chrono::system_clock::time_point expiry_ FLASHBOB_GUARDED_BY(mutex_);
  MemoryFile identity_ FLASHBOB_GUARDED_BY(mutex_);
  MemoryFile client_ca_ FLASHBOB_GUARDED_BY(mutex_);
};

}  // namespace flashbob::server

#endif  // FLASHBOB_SERVER_AUTH_TLS_FILES_H_
