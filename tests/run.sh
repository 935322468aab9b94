#!/usr/bin/env bash
# Installs what is missing, builds everything and runs every test: those of CTest, then the Python package's with the
# distribution's packages (tests/client/python/run.sh). Tests that need a GPU say so and skip where there is none;
# nothing else skips. The last lines have the counts. Arguments go to ctest, and choose among its tests alone:
# tests/run.sh -R Scheduler
set -euo pipefail

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$top"

deploy/install_dependencies.sh
deploy/build.sh
ctest --test-dir build --output-on-failure --timeout 300 -j "$(nproc)" --output-log "$top/build/ctest.log" "$@"
if [ $# -gt 0 ]; then exit; fi
tests/client/python/run.sh distribution
echo "run.sh: CTest: $(grep 'tests passed' build/ctest.log)"
