#include "tests/server/testing/certificates.h"

#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <random>
#include <stdexcept>

namespace flashbob::server {
namespace {

struct Free {
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(X509_EXTENSION* extension) const { X509_EXTENSION_free(extension); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};
using Key = std::unique_ptr<EVP_PKEY, Free>;
using Certificate = std::unique_ptr<X509, Free>;

std::string Contents(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  return std::string(data, static_cast<size_t>(size));
}

std::string ToPem(X509* certificate) {
  const std::unique_ptr<BIO, Free> bio(BIO_new(BIO_s_mem()));
  PEM_write_bio_X509(bio.get(), certificate);
  return Contents(bio.get());
}

std::string ToPem(EVP_PKEY* key) {
  const std::unique_ptr<BIO, Free> bio(BIO_new(BIO_s_mem()));
  PEM_write_bio_PrivateKey(bio.get(), key, nullptr, nullptr, 0, nullptr, nullptr);
  return Contents(bio.get());
}

void Extend(X509* certificate, int what, const std::string& value) {
  const std::unique_ptr<X509_EXTENSION, Free> extension(X509V3_EXT_conf_nid(nullptr, nullptr, what, value.c_str()));
  if (extension == nullptr) throw std::runtime_error("no extension " + value);
  X509_add_ext(certificate, extension.get(), -1);
}

// Not yet signed.
Certificate Make(const CertificateAuthority::Subject& subject, EVP_PKEY* key) {
  Certificate certificate(X509_new());
  X509_set_version(certificate.get(), 2);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), static_cast<long>(std::random_device()() >> 1));
  const auto valid_for = static_cast<long>(subject.valid_for.count());
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -7 * 24 * 3600);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), valid_for);
  X509_set_pubkey(certificate.get(), key);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate.get()), "CN", MBSTRING_UTF8,
                             reinterpret_cast<const unsigned char*>(subject.common_name.c_str()), -1, -1, 0);
  return certificate;
}

}  // namespace

struct CertificateAuthority::Identity {
  Key key;
  Certificate certificate;
};

CertificateAuthority::CertificateAuthority(const std::string& name) : identity_(std::make_unique<Identity>()) {
  identity_->key.reset(EVP_EC_gen("P-256"));
  identity_->certificate = Make({.common_name = name, .alternative_names = ""}, identity_->key.get());
  X509* const certificate = identity_->certificate.get();
  X509_set_issuer_name(certificate, X509_get_subject_name(certificate));
  Extend(certificate, NID_basic_constraints, "critical,CA:TRUE");
  X509_sign(certificate, identity_->key.get(), EVP_sha256());
}

CertificateAuthority::~CertificateAuthority() = default;

std::string CertificateAuthority::pem() const { return ToPem(identity_->certificate.get()); }

PemPair CertificateAuthority::Issue(const Subject& subject) const {
  const Key key(EVP_EC_gen("P-256"));
  const Certificate certificate = Make(subject, key.get());
  X509_set_issuer_name(certificate.get(), X509_get_subject_name(identity_->certificate.get()));
  if (!subject.alternative_names.empty()) {
    Extend(certificate.get(), NID_subject_alt_name, subject.alternative_names);
  }
  X509_sign(certificate.get(), identity_->key.get(), EVP_sha256());
  return {ToPem(certificate.get()), ToPem(key.get())};
}

}  // namespace flashbob::server
