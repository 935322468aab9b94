#!/usr/bin/env bash
# Runs the fuzz targets one after the other, from their seeds and from what earlier runs found, and stops at the first
# target of which an input breaks a promise; the input is kept:
#   tests/fuzz/run.sh [--jobs N] SECONDS [TARGET...]      so long each
#   tests/fuzz/run.sh [--jobs N] --runs M [TARGET...]     so many inputs each
# Targets are wire, safetensors, config, http, metadata, output; without any, all of them. With --jobs each is run by N
# processes at once, which share the inputs and tell each other what they find. tests/sanitize.sh build makes the
# programs. A kept input is run again by build/asan/TARGET_fuzzer FILE.
set -euo pipefail

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
bin=${FLASHBOB_FUZZ_BIN:-$top/build/asan}
work=$top/build/fuzz
usage="usage: run.sh [--jobs N] SECONDS | --runs M [TARGET...]"

jobs=1
if [ "${1:-}" = --jobs ]; then
  jobs=${2:?$usage}
  shift 2
fi
if [ "${1:-}" = --runs ]; then
  limit=-runs=$(((${2:?$usage} + jobs - 1) / jobs))
  shift 2
else
  limit=-max_total_time="${1:?$usage}"
  shift
fi
[ $# -gt 0 ] || set -- wire safetensors config http metadata output

# AddressSanitizer of older clangs starts only sometimes where the kernel spreads memory widely.
same_addresses=()
if setarch -R true 2>/dev/null; then same_addresses=(setarch -R); fi

"${same_addresses[@]}" "$bin/fuzz_seeds" "$work/seeds"
# Short stacks and a small quarantine: tens of thousands of small inputs a second free nothing that stays interesting.
export ASAN_OPTIONS=malloc_context_size=3:quarantine_size_mb=8
export UBSAN_OPTIONS=print_stacktrace=1
for target in "$@"; do
  mkdir -p "$work/corpus/$target" "$work/broken"
  rm -f "$work/$target".*.log
  options=("$limit" -entropic=0 -timeout=10 -rss_limit_mb=2048 -print_final_stats=1
    -artifact_prefix="$work/broken/$target-")
  if [ -f "$top/tests/fuzz/$target.dict" ]; then options+=(-dict="$top/tests/fuzz/$target.dict"); fi
  processes=()
  for ((job = 0; job < jobs; ++job)); do
    "${same_addresses[@]}" "$bin/${target}_fuzzer" "${options[@]}" "$work/corpus/$target" "$work/seeds/$target" \
      >"$work/$target.$job.log" 2>&1 &
    processes+=($!)
  done
  failed=()
  for job in "${!processes[@]}"; do
    wait "${processes[$job]}" || failed+=("$work/$target.$job.log")
  done
  if [ ${#failed[@]} -gt 0 ]; then
    for log in "${failed[@]}"; do tail -n 60 "$log" >&2; done
    echo "fuzz: $target FAILED: ${failed[*]}" >&2
    exit 1
  fi
  awk -v target="$target" '
    /^stat::number_of_executed_units:/ { inputs += $2 }
    /^Done .* runs in/ && $5 > seconds { seconds = $5 }
    /DONE.*cov: / { sub(/.*cov: /, ""); if ($1 + 0 > coverage) coverage = $1 + 0 }
    END { printf "fuzz: %s: %d inputs in %d s by %d, cov: %d\n", target, inputs, seconds, ARGC - 1, coverage }
  ' "$work/$target".*.log
done
