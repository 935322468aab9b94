#include "server/auth/tls_files.h"

#include <fcntl.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/config/text_format.h"

namespace flashbob::server {
namespace {

using std::chrono::system_clock;

// How often gRPC looks at its copies.
constexpr unsigned kRefreshSeconds = 1;

struct Free {
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};
using Certificate = std::unique_ptr<X509, Free>;

std::unique_ptr<BIO, Free> Reader(const std::string& text) {
  return std::unique_ptr<BIO, Free>(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// No key is asked for on the terminal.
int NoPassphrase(char*, int, int, void*) { return 0; }

Certificate FirstCertificate(const std::string& pem) {
  return Certificate(PEM_read_bio_X509(Reader(pem).get(), nullptr, NoPassphrase, nullptr));
}

absl::Status Wrong(const std::string& path, const char* what) {
  return absl::InvalidArgumentError(absl::StrCat(path, what));
}

absl::StatusOr<int> NewMemoryFile(const std::string& contents) {
  const auto failed = [] { return absl::InternalError(absl::StrCat("no memory file: ", std::strerror(errno))); };
  const int descriptor = memfd_create("flashbob-tls", MFD_CLOEXEC);
  if (descriptor < 0) return failed();
  for (size_t done = 0; done < contents.size();) {
    const ssize_t wrote = write(descriptor, contents.data() + done, contents.size() - done);
    if (wrote <= 0) {
      const absl::Status status = failed();
      close(descriptor);
      return status;
    }
    done += static_cast<size_t>(wrote);
  }
  return descriptor;
}

}  // namespace

absl::StatusOr<MemoryFile> MemoryFile::Create(const std::string& contents) {
  FLASHBOB_ASSIGN_OR_RETURN(const int descriptor, NewMemoryFile(contents));
  return MemoryFile(descriptor);
}

MemoryFile::MemoryFile(MemoryFile&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

MemoryFile::~MemoryFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

std::string MemoryFile::path() const { return absl::StrCat("/proc/self/fd/", descriptor_); }

absl::Status MemoryFile::Replace(const std::string& contents) {
  FLASHBOB_ASSIGN_OR_RETURN(const int descriptor, NewMemoryFile(contents));
  const bool replaced = dup3(descriptor, descriptor_, O_CLOEXEC) >= 0;
  close(descriptor);
  return replaced ? absl::OkStatus() : absl::InternalError(absl::StrCat("no memory file: ", std::strerror(errno)));
}

absl::StatusOr<std::unique_ptr<TlsFiles>> TlsFiles::Load(const TlsPaths& paths) {
  Contents contents = Read(paths);
  FLASHBOB_ASSIGN_OR_RETURN(const system_clock::time_point expiry, Check(paths, contents));
  FLASHBOB_ASSIGN_OR_RETURN(MemoryFile identity, MemoryFile::Create(contents.Identity()));
  FLASHBOB_ASSIGN_OR_RETURN(MemoryFile client_ca, MemoryFile::Create(contents.client_ca));
  return std::unique_ptr<TlsFiles>(
      new TlsFiles(paths, std::move(contents), expiry, std::move(identity), std::move(client_ca)));
}

TlsFiles::TlsFiles(TlsPaths paths, Contents contents, system_clock::time_point expiry, MemoryFile identity,
                   MemoryFile client_ca)
    : paths_(std::move(paths)),
      seen_(std::move(contents)),
      expiry_(expiry),
      identity_(std::move(identity)),
      client_ca_(std::move(client_ca)) {}

std::shared_ptr<grpc::ServerCredentials> TlsFiles::Credentials(bool require_client_certificate) const {
  MutexLock lock(mutex_);
  const bool ask = !paths_.client_ca.empty();
  const auto provider = std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
      identity_.path(), identity_.path(), ask ? client_ca_.path() : "", kRefreshSeconds);
  grpc::experimental::TlsServerCredentialsOptions options(provider);
  options.watch_identity_key_cert_pairs();
  if (ask) {
    options.watch_root_certs();
    options.set_cert_request_type(require_client_certificate
                                      ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                                      : GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY);
  }
  return grpc::experimental::TlsServerCredentials(options);
}

absl::StatusOr<bool> TlsFiles::Reload() {
  Contents contents = Read(paths_);
  MutexLock lock(mutex_);
  if (contents == seen_) return false;
  seen_ = contents;
  FLASHBOB_ASSIGN_OR_RETURN(expiry_, Check(paths_, contents));
  FLASHBOB_RETURN_IF_ERROR(identity_.Replace(contents.Identity()));
  FLASHBOB_RETURN_IF_ERROR(client_ca_.Replace(contents.client_ca));
  return true;
}

system_clock::time_point TlsFiles::expiry() const {
  MutexLock lock(mutex_);
  return expiry_;
}

TlsFiles::Contents TlsFiles::Read(const TlsPaths& paths) {
  Contents contents;
  for (const auto& [path, text] :
       {std::pair{&paths.certificate, &contents.certificate}, std::pair{&paths.key, &contents.key},
        std::pair{&paths.client_ca, &contents.client_ca}}) {
    if (path->empty()) continue;
    absl::StatusOr<std::string> read = ReadTextFile(*path);
    if (!read.ok()) {
      Contents none;
      none.error = std::string(read.status().message());
      return none;
    }
    *text = *std::move(read);
  }
  return contents;
}

absl::StatusOr<system_clock::time_point> TlsFiles::Check(const TlsPaths& paths, const Contents& contents) {
  if (!contents.error.empty()) return absl::InvalidArgumentError(contents.error);
  const Certificate certificate = FirstCertificate(contents.certificate);
  if (certificate == nullptr) return Wrong(paths.certificate, " holds no certificate in PEM");
  const std::unique_ptr<EVP_PKEY, Free> key(
      PEM_read_bio_PrivateKey(Reader(contents.key).get(), nullptr, NoPassphrase, nullptr));
  if (key == nullptr) return Wrong(paths.key, " holds no private key in PEM that needs no passphrase");
  if (X509_check_private_key(certificate.get(), key.get()) != 1) {
    return Wrong(paths.key, absl::StrCat(" is not the key of the certificate in ", paths.certificate).c_str());
  }
  if (!paths.client_ca.empty() && FirstCertificate(contents.client_ca) == nullptr) {
    return Wrong(paths.client_ca, " holds no certificate in PEM");
  }
  std::tm until = {};
  if (ASN1_TIME_to_tm(X509_get0_notAfter(certificate.get()), &until) != 1) {
    return Wrong(paths.certificate, " holds a certificate whose end cannot be read");
  }
  const system_clock::time_point expiry = system_clock::from_time_t(timegm(&until));
  if (expiry <= system_clock::now()) return Wrong(paths.certificate, " holds a certificate that has expired");
  return expiry;
}

}  // namespace flashbob::server
