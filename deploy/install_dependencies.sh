#!/usr/bin/env bash
# Installs the packages of deploy/packages.txt (and those named as arguments) that are missing. Debian 12 or Ubuntu
# 24.04, as root or with sudo. Does nothing, and needs no rights, where all are there.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

if ! command -v apt-get >/dev/null; then
  echo "install_dependencies: this is neither Debian nor Ubuntu; install the equivalents of $here/packages.txt" >&2
  exit 1
fi

missing=()
while read -r package; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q '^install ok installed$' || missing+=("$package")
done < <({ sed 's/#.*//' "$here/packages.txt"; printf '%s\n' "$@"; } | awk 'NF {print $1}')

if [ ${#missing[@]} -eq 0 ]; then
  echo "install_dependencies: everything is installed"
  exit 0
fi

sudo=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "install_dependencies: needs root or sudo to install: ${missing[*]}" >&2; exit 1; }
  sudo=(sudo)
fi
echo "install_dependencies: installing ${missing[*]}"
"${sudo[@]}" apt-get update -qq
"${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
