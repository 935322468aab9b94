#!/usr/bin/env bash
# Packs flashbob-server, flashbob and every library that they need into one archive, for machines without our packages:
# any x86-64 Linux with this machine's glibc or a newer one, with GPUs or without.
#
#   deploy/bundle.sh ARCHIVE.tar.xz [TARGET...]     TARGET: other programs of the build to pack, as in golden_test
#
# There: tar xf ARCHIVE.tar.xz && flashbob/bin/flashbob-server
set -euo pipefail

[ $# -ge 1 ] || { echo "usage: deploy/bundle.sh ARCHIVE.tar.xz [TARGET...]" >&2; exit 2; }
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
archive=$(realpath "$1")
programs=(flashbob-server flashbob "${@:2}")

"$top/deploy/build.sh" "${programs[@]}"

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
bundle=$scratch/flashbob
mkdir -p "$bundle/bin" "$bundle/lib/flashbob"
for program in "${programs[@]}"; do
  strip --strip-unneeded -o "$bundle/bin/$program" "$top/build/$program"
done
cp "$top/LICENSE" "$bundle/"

# All of the closure but glibc: that belongs to the machine's loader and to its driver.
for program in "${programs[@]}"; do ldd "$top/build/$program"; done | awk '$2 == "=>" {print $1, $3}' | sort -u |
  while read -r name path; do
    case $name in
      libc.so.* | libm.so.* | libdl.so.* | libpthread.so.* | librt.so.* | libresolv.so.*) continue ;;
    esac
    [ -e "$path" ] || { echo "bundle: $name is not found on this machine" >&2; exit 1; }
    strip --strip-unneeded -o "$bundle/lib/flashbob/$name" "$(realpath "$path")"
  done

tar -C "$scratch" --owner=0 --group=0 -c flashbob | xz -T0 >"$archive"
echo "bundle: $(du -h "$archive" | cut -f1) in $archive, $(du -sh "$bundle" | cut -f1) unpacked, needs glibc $(
  ldd --version | awk 'NR == 1 {print $NF}')"
