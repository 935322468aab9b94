// Certificates made by a test: an authority and what it issues, with P-256 keys.
#ifndef FLASHBOB_TESTS_SERVER_TESTING_CERTIFICATES_H_
#define FLASHBOB_TESTS_SERVER_TESTING_CERTIFICATES_H_

#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace flashbob::server {

struct PemPair {
  std::string certificate;
  std::string key;
};

class CertificateAuthority {
 public:
  struct Subject {
    std::string common_name;
    std::string alternative_names;                            // as in "DNS:localhost,IP:127.0.0.1"; empty: none
    std::chrono::seconds valid_for = std::chrono::hours(24);  // negative: it has expired
  };

  explicit CertificateAuthority(const std::string& name);
  ~CertificateAuthority();

  std::string pem() const;
  PemPair Issue(const Subject& subject) const;

 private:
  struct Identity;
  std::unique_ptr<Identity> identity_;
};

}  // namespace flashbob::server

#endif  // FLASHBOB_TESTS_SERVER_TESTING_CERTIFICATES_H_
