#!/usr/bin/env bash
# Installs what is missing, builds everything and runs every test. Tests that need a GPU say so and skip where there is
# none; nothing else skips. Arguments go to ctest, as in: tests/run.sh -R Scheduler
set -euo pipefail

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$top"

deploy/install_dependencies.sh
deploy/build.sh
ctest --test-dir build --output-on-failure -j "$(nproc)" "$@"
