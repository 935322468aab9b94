#!/usr/bin/env bash
# Builds the soak and runs it: tests/soak/run.sh [--minutes N] [--clients N] [--seed N]. README.md beside has what it
# does and figures.
set -euo pipefail

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
"$top/deploy/build.sh" soak
exec nice -n 5 "$top/build/soak" "$@"
