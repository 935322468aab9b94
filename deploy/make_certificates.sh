#!/usr/bin/env bash
# Makes a certificate authority and a server certificate that it vouches for, to try TLS with: for production, take
# your own authority's. make_certificates.sh DIRECTORY [NAME...] writes ca.pem, server.pem and server.key; the
# certificate holds the names and addresses given, localhost and 127.0.0.1. The authority's key is thrown away. Does
# nothing where the certificate is there and good for another week.
set -euo pipefail

directory=${1:?usage: make_certificates.sh DIRECTORY [NAME...]}
shift
if openssl x509 -in "$directory/server.pem" -noout -checkend 604800 >/dev/null 2>&1; then exit 0; fi

names=DNS:localhost,IP:127.0.0.1
for name in "$@"; do
  if [[ $name =~ ^[0-9.]+$|: ]]; then names+=,IP:$name; else names+=,DNS:$name; fi
done
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
umask 077
new_key() { openssl genpkey -quiet -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1" 2>/dev/null ||
  openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1"; }
new_key "$scratch/ca.key"
openssl req -x509 -new -key "$scratch/ca.key" -days 90 -subj "/CN=FlashBoB trial authority" -out "$scratch/ca.pem"
new_key "$scratch/server.key"
openssl req -new -key "$scratch/server.key" -subj "/CN=flashbob" -out "$scratch/server.csr"
openssl x509 -req -in "$scratch/server.csr" -CA "$scratch/ca.pem" -CAkey "$scratch/ca.key" -CAcreateserial -days 90 \
  -extfile <(printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth\n' "$names") -out "$scratch/server.pem" 2>/dev/null

mkdir -p "$directory"
chmod 755 "$directory"
install -m 644 "$scratch/ca.pem" "$scratch/server.pem" "$directory"
install -m 600 "$scratch/server.key" "$directory"
# In a container the server is user 10001; only root can give it the key.
if [ "$(id -u)" -eq 0 ]; then chown 10001:10001 "$directory/server.key"; fi
echo "make_certificates: $directory has ca.pem, server.pem and server.key for $names"
