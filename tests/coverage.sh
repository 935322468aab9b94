#!/usr/bin/env bash
# Lines and branches of the host's code that the tests run, by folder: tests/coverage.sh [CTEST ARGUMENTS]
#
# Builds into build/coverage with gcov's counters, runs CTest, and prints a table; build/coverage/coverage.json has every
# file. A test that compares times may fail here, where all code is slower; it is named, and what it ran counts.
set -euo pipefail

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$top"
deploy/install_dependencies.sh gcovr

# Stale counters would count what an earlier build ran.
if [ -d build/coverage ]; then find build/coverage -name '*.gcda' -delete; fi
cmake -S . -B build/coverage -G Ninja -DFLASHBOB_CUDA=OFF -DCMAKE_CXX_FLAGS="--coverage -fprofile-update=atomic" \
  -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -g1" >/dev/null
cmake --build build/coverage -j "${FLASHBOB_BUILD_JOBS:-$(nproc)}"
ctest --test-dir build/coverage --output-on-failure --timeout 600 -j "$(nproc)" "$@" || echo "coverage: some tests failed"

# An assertion's or an exception's branches are the compiler's, not ours.
gcovr --root . --filter kernels/ --filter server/ --filter client/cpp/ --filter client/cli/ \
  --exclude-throw-branches --exclude-unreachable-branches --gcov-ignore-parse-errors -j "$(nproc)" \
  --json-summary build/coverage/coverage.json --json-summary-pretty build/coverage >/dev/null
python3 tests/coverage_table.py build/coverage/coverage.json
