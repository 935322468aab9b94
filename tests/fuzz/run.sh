#!/usr/bin/env bash
# Runs the fuzz targets one after the other, from their seeds and from what earlier runs found, and stops at the first
# input that breaks a promise, which it keeps:
#   tests/fuzz/run.sh SECONDS [TARGET...]       so long each
#   tests/fuzz/run.sh --runs N [TARGET...]      so many inputs each
# Targets are wire, safetensors, config, http, metadata, output; without any, all of them. tests/sanitize.sh build makes
# the programs. A kept input is run again by build/asan/TARGET_fuzzer FILE.
set -euo pipefail

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
bin=${FLASHBOB_FUZZ_BIN:-$top/build/asan}
work=$top/build/fuzz

if [ "${1:-}" = --runs ]; then
  limit=(-runs="$2")
  shift 2
else
  limit=(-max_total_time="${1:?usage: run.sh SECONDS | --runs N [TARGET...]}")
  shift
fi
[ $# -gt 0 ] || set -- wire safetensors config http metadata output

"$bin/fuzz_seeds" "$work/seeds"
# Short stacks and a small quarantine: tens of thousands of small inputs a second free nothing that stays interesting.
export ASAN_OPTIONS=malloc_context_size=3:quarantine_size_mb=8
export UBSAN_OPTIONS=print_stacktrace=1
for target in "$@"; do
  mkdir -p "$work/corpus/$target" "$work/broken"
  options=("${limit[@]}" -entropic=0 -timeout=10 -rss_limit_mb=2048 -print_final_stats=1
    -artifact_prefix="$work/broken/$target-")
  if [ -f "$top/tests/fuzz/$target.dict" ]; then options+=(-dict="$top/tests/fuzz/$target.dict"); fi
  if ! "$bin/${target}_fuzzer" "${options[@]}" "$work/corpus/$target" "$work/seeds/$target" >"$work/$target.log" 2>&1; then
    tail -n 60 "$work/$target.log" >&2
    echo "fuzz: $target FAILED: $work/$target.log" >&2
    exit 1
  fi
  echo "fuzz: $target: $(grep -oP 'stat::number_of_executed_units: *\K.*' "$work/$target.log") inputs, $(grep -oP \
    '^Done .*' "$work/$target.log"), $(grep -oP 'DONE.*\Kcov: \d+' "$work/$target.log")"
done
