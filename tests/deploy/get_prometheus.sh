#!/usr/bin/env bash
# Puts `prometheus` and `promtool` into a folder (default build/prometheus), from the distribution's package, without
# installing it: that would start a server of its own. Does nothing where they are there.
set -euo pipefail

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
into=${1:-$top/build/prometheus}
[ -x "$into/promtool" ] && [ -x "$into/prometheus" ] && exit 0
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
apt-get download -qq prometheus >/dev/null 2>&1 || { apt-get update -qq && apt-get download -qq prometheus >/dev/null; }
dpkg-deb -x prometheus_*.deb unpacked
mkdir -p "$into"
mv unpacked/usr/bin/prometheus unpacked/usr/bin/promtool "$into/"
