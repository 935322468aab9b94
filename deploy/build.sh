#!/usr/bin/env bash
# Builds into build/ at the top of the repository: deploy/build.sh [TARGET...]. Without targets, everything.
# FLASHBOB_BUILD_JOBS bounds the parallel compilations (default: one a core).
set -euo pipefail

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
jobs=${FLASHBOB_BUILD_JOBS:-$(nproc)}

cmake -S "$top" -B "$top/build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo >"$top/build.log" 2>&1 || {
  cat "$top/build.log" >&2
  exit 1
}
rm -f "$top/build.log"
if [ $# -gt 0 ]; then set -- --target "$@"; fi
cmake --build "$top/build" -j "$jobs" "$@"
